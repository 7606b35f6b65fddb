#include "tools/key_file.h"

#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/bytes.h"

enum { KEY_BYTES = 32, TEXT_BYTES = 2 * KEY_BYTES };

static int digit_of(uint8_t character)
{
    if (character >= '0' && character <= '9') return character - '0';
    if (character >= 'a' && character <= 'f') return character - 'a' + 10;
    if (character >= 'A' && character <= 'F') return character - 'A' + 10;
    return -1;
}

static bool parse_digits(const uint8_t *text, uint8_t *ret_key)
{
    uint8_t key[KEY_BYTES];
    for (int i = 0; i < KEY_BYTES; i++) {
        const int high = digit_of(text[2 * i]), low = digit_of(text[2 * i + 1]);
        if (high < 0 || low < 0) return false;
        key[i] = (uint8_t)(high << 4 | low);
    }
    memcpy(ret_key, key, sizeof key);
    return true;
}

const char *kvt_read_key_file(const char *path, uint8_t ret_key[32])
{
    uint8_t bytes[TEXT_BYTES + 3];
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return "the file cannot be opened";
    size_t size = 0;
    ssize_t got = 0;
    while (size < sizeof bytes && (got = read(file, bytes + size, sizeof bytes - size)) > 0) size += (size_t)got;
    (void)close(file);
    if (got < 0) return "the file cannot be read";
    if (size == KEY_BYTES) {
        memcpy(ret_key, bytes, KEY_BYTES);
        return NULL;
    }
    while (size > TEXT_BYTES && (bytes[size - 1] == '\n' || bytes[size - 1] == '\r')) size--;
    return size == TEXT_BYTES && parse_digits(bytes, ret_key) ? NULL
                                                              : "the file must hold 32 bytes, or 64 hexadecimal digits";
}
