/* key_file: the key of an encrypted store, as people keep it. */
#ifndef KVT_TOOLS_KEY_FILE_H
#define KVT_TOOLS_KEY_FILE_H

#include <stdint.h>

/* A file of 32 bytes, or of 64 hexadecimal digits and a line end at most. Returns NULL, or the rule that it breaks. */
const char *kvt_read_key_file(const char *path, uint8_t ret_key[32]);

#endif
