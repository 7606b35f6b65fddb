#include "tools/links.h"

#include <errno.h>
#include <json-c/json.h>
#include <math.h>
#include <string.h>

#include "runtime/base/bytes.h"

#define FORMAT 1
#define NS_MAX 1e12
#define BYTES_PER_S_MAX 1e18

/* ---- Writing ----------------------------------------------------------------------------------------------------- */

static void put_number(struct json_object *object, const char *name, double value)
{
    char text[40];
    (void)snprintf(text, sizeof text, value < 100 ? "%.6f" : "%.1f", value);
    (void)json_object_object_add(object, name, json_object_new_double_s(value, text));
}

static struct json_object *put_object(struct json_object *object, const char *name)
{
    struct json_object *inner = json_object_new_object();
    (void)json_object_object_add(object, name, inner);
    return inner;
}

static void put_link(struct json_object *object, const char *name, const struct kvt_link *link)
{
    struct json_object *inner = put_object(object, name);
    put_number(inner, "bytes_per_second", link->bytes_per_s);
    put_number(inner, "op_ns", link->op_ns);
}

static void put_points(struct json_object *object, const char *name, const struct kvt_link_point *points,
                       uint32_t count)
{
    struct json_object *array = json_object_new_array();
    (void)json_object_object_add(object, name, array);
    for (uint32_t i = 0; i < count; i++) {
        struct json_object *point = json_object_new_object();
        (void)json_object_object_add(point, "op_bytes", json_object_new_uint64(points[i].op_bytes));
        (void)json_object_object_add(point, "depth", json_object_new_uint64(points[i].depth));
        put_number(point, "bytes_per_second", points[i].bytes_per_s);
        put_number(point, "latency_p50_ns", points[i].latency_p50_ns);
        put_number(point, "latency_p99_ns", points[i].latency_p99_ns);
        (void)json_object_array_add(array, point);
    }
}

static void put_disk(struct json_object *root, const struct kvt_links *links)
{
    struct json_object *disk = put_object(root, "nvme");
    put_link(disk, "read", &links->read);
    put_link(disk, "write", &links->write);
    put_number(disk, "mixed_bytes_per_second", links->mixed_bytes_per_s);
    put_number(disk, "put_ns", links->put_ns);
    put_number(disk, "get_ns", links->get_ns);
    (void)json_object_object_add(disk, "alignment", json_object_new_uint64(links->alignment));
    put_points(disk, "reads", links->reads, links->point_count);
    put_points(disk, "writes", links->writes, links->point_count);
}

enum kvt_status kvt_links_write(const struct kvt_links *links, FILE *stream)
{
    struct json_object *root = json_object_new_object();
    if (!root) return KVT_NOMEM;
    (void)json_object_object_add(root, "kvtier_links", json_object_new_uint64(FORMAT));
    struct json_object *device = put_object(root, "device");
    (void)json_object_object_add(device, "name", json_object_new_string(links->device));
    put_link(device, "to_host", &links->to_host);
    put_link(device, "to_device", &links->to_device);
    struct json_object *codec = put_object(root, "codec");
    for (uint32_t i = 0; i < KVT_LINKS_DTYPES; i++) {
        if (!links->codec[i].is_measured) continue;
        struct json_object *dtype = put_object(codec, kvt_dtype_name((enum kvt_dtype)i));
        put_number(dtype, "pack_ns_per_byte", links->codec[i].pack_ns_per_byte);
        put_number(dtype, "unpack_ns_per_byte", links->codec[i].unpack_ns_per_byte);
        put_number(dtype, "ratio", links->codec[i].ratio);
    }
    if (links->has_disk) put_disk(root, links);
    struct json_object *engine = put_object(root, "engine");
    put_number(engine, "write_ns_per_byte", links->engine.write_ns_per_byte);
    put_number(engine, "line_ns", links->engine.line_ns);
    put_number(engine, "oversleep_ns", links->engine.oversleep_ns);
    put_number(engine, "between_ns", links->engine.between_ns);
    put_number(engine, "wake_ns", links->engine.wake_ns);
    const char *text = json_object_to_json_string_ext(
        root, JSON_C_TO_STRING_PRETTY | JSON_C_TO_STRING_SPACED | JSON_C_TO_STRING_NOSLASHESCAPE);
    enum kvt_status status = text ? KVT_OK : KVT_NOMEM;
    if (text && (fprintf(stream, "%s\n", text) < 0 || fflush(stream) != 0)) status = KVT_IO;
    (void)json_object_put(root);
    return status;
}

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

struct reader {
    char *error;
    uint32_t error_bytes;
    bool is_bad; /* one line was written; later ones are not */
};

static void refuse(struct reader *reader, const char *where, const char *name, struct json_object *value,
                   const char *rule)
{
    if (reader->is_bad) return;
    reader->is_bad = true;
    (void)snprintf(reader->error, reader->error_bytes, "%s%s%s is %.40s: %s", where, where[0] ? "." : "", name,
                   value ? json_object_to_json_string_ext(value, JSON_C_TO_STRING_PLAIN) : "missing", rule);
}

static void read_number(struct reader *reader, struct json_object *object, const char *where, const char *name,
                        double least, double most, double *ret_value)
{
    char rule[64];
    struct json_object *value = NULL;
    (void)snprintf(rule, sizeof rule, "a number, %g to %g", least, most);
    const bool is_there = object && json_object_object_get_ex(object, name, &value);
    if (!is_there || !(json_object_is_type(value, json_type_double) || json_object_is_type(value, json_type_int))) {
        refuse(reader, where, name, value, rule);
        return;
    }
    const double number = json_object_get_double(value);
    if (!isfinite(number) || number < least || number > most) refuse(reader, where, name, value, rule);
    else *ret_value = number;
}

/* NULL, refused unless it may be missing. */
static struct json_object *object_of(struct reader *reader, struct json_object *object, const char *name,
                                     bool is_optional)
{
    struct json_object *inner = NULL;
    if (!json_object_object_get_ex(object, name, &inner) && is_optional) return NULL;
    if (json_object_is_type(inner, json_type_object)) return inner;
    refuse(reader, "", name, inner, "an object");
    return NULL;
}

static void read_link(struct reader *reader, struct json_object *object, const char *name, struct kvt_link *ret_link)
{
    struct json_object *inner = object ? object_of(reader, object, name, false) : NULL;
    if (!inner) return;
    read_number(reader, inner, name, "bytes_per_second", 0, BYTES_PER_S_MAX, &ret_link->bytes_per_s);
    read_number(reader, inner, name, "op_ns", 0, NS_MAX, &ret_link->op_ns);
}

static void read_codec(struct reader *reader, struct json_object *codec, struct kvt_links *links)
{
    for (uint32_t i = 0; codec && i < KVT_LINKS_DTYPES; i++) {
        const char *name = kvt_dtype_name((enum kvt_dtype)i);
        struct json_object *dtype = object_of(reader, codec, name, true);
        if (!dtype) continue;
        links->codec[i].is_measured = true;
        read_number(reader, dtype, name, "pack_ns_per_byte", 0, 1e6, &links->codec[i].pack_ns_per_byte);
        read_number(reader, dtype, name, "unpack_ns_per_byte", 0, 1e6, &links->codec[i].unpack_ns_per_byte);
        read_number(reader, dtype, name, "ratio", 1, 100, &links->codec[i].ratio);
    }
}

static void read_disk(struct reader *reader, struct json_object *disk, struct kvt_links *links)
{
    if (!disk) return;
    double alignment = 0;
    links->has_disk = true;
    read_link(reader, disk, "read", &links->read);
    read_link(reader, disk, "write", &links->write);
    read_number(reader, disk, "nvme", "mixed_bytes_per_second", 0, BYTES_PER_S_MAX, &links->mixed_bytes_per_s);
    read_number(reader, disk, "nvme", "put_ns", 0, NS_MAX, &links->put_ns);
    read_number(reader, disk, "nvme", "get_ns", 0, NS_MAX, &links->get_ns);
    read_number(reader, disk, "nvme", "alignment", 512, 4096, &alignment);
    links->alignment = (uint32_t)alignment;
    struct json_object *value = NULL;
    if (!reader->is_bad && links->alignment != 512 && links->alignment != 1024 && links->alignment != 2048
        && links->alignment != 4096) {
        (void)json_object_object_get_ex(disk, "alignment", &value);
        refuse(reader, "nvme", "alignment", value, "a power of two, 512 to 4096");
    }
}

static void read_root(struct reader *reader, struct json_object *root, struct kvt_links *links)
{
    static const char rule[] = "1, in a file that kvtier bench --calibrate wrote";
    struct json_object *format = NULL;
    if (!json_object_is_type(root, json_type_object)) {
        refuse(reader, "", "it", root, "one JSON object, as kvtier bench --calibrate writes it");
        return;
    }
    if (!json_object_object_get_ex(root, "kvtier_links", &format) || !json_object_is_type(format, json_type_int)
        || json_object_get_int64(format) != FORMAT)
        refuse(reader, "", "kvtier_links", format, rule);
    struct json_object *device = object_of(reader, root, "device", false), *name = NULL;
    const bool is_named = device && json_object_object_get_ex(device, "name", &name);
    if (is_named && !json_object_is_type(name, json_type_string)) refuse(reader, "device", "name", name, "a string");
    else if (is_named)
        (void)snprintf(links->device, sizeof links->device, "%s", json_object_get_string(name));
    read_link(reader, device, "to_host", &links->to_host);
    read_link(reader, device, "to_device", &links->to_device);
    read_codec(reader, object_of(reader, root, "codec", false), links);
    read_disk(reader, object_of(reader, root, "nvme", true), links);
    struct json_object *engine = object_of(reader, root, "engine", false);
    if (!engine) return;
    read_number(reader, engine, "engine", "write_ns_per_byte", 0, 1e6, &links->engine.write_ns_per_byte);
    read_number(reader, engine, "engine", "line_ns", 0, NS_MAX, &links->engine.line_ns);
    read_number(reader, engine, "engine", "oversleep_ns", 0, NS_MAX, &links->engine.oversleep_ns);
    read_number(reader, engine, "engine", "between_ns", 0, NS_MAX, &links->engine.between_ns);
    read_number(reader, engine, "engine", "wake_ns", 0, NS_MAX, &links->engine.wake_ns);
}

enum kvt_status kvt_links_read(const char *path, struct kvt_links *ret_links, char *ret_error, uint32_t error_bytes)
{
    enum { BYTES_MAX = 65536 };
    struct kvt_links links = { 0 };
    char text[BYTES_MAX];
    FILE *file = fopen(path, "r");
    if (!file) {
        (void)snprintf(ret_error, error_bytes, "%s: cannot be read: %s", path, strerror(errno));
        return KVT_IO;
    }
    const size_t length = fread(text, 1, sizeof text - 1, file);
    const int error = errno;
    const bool is_broken = ferror(file) != 0, is_long = !feof(file) && length == sizeof text - 1;
    (void)fclose(file);
    text[length] = '\0';
    if (is_broken || is_long) {
        (void)snprintf(ret_error, error_bytes, "%s: cannot be read: %s", path,
                       is_broken ? strerror(error) : "it is longer than 64 KiB");
        return KVT_IO;
    }
    enum json_tokener_error parsed;
    struct json_object *root = json_tokener_parse_verbose(text, &parsed);
    char line[256] = "";
    struct reader reader = { .error = line, .error_bytes = sizeof line };
    if (parsed != json_tokener_success) {
        (void)snprintf(line, sizeof line, "%s: it must be one JSON object, as kvtier bench --calibrate writes it",
                       json_tokener_error_desc(parsed));
        reader.is_bad = true;
    } else {
        read_root(&reader, root, &links);
    }
    (void)json_object_put(root);
    if (reader.is_bad) {
        (void)snprintf(ret_error, error_bytes, "%s: %s", path, line);
        return KVT_INVAL;
    }
    *ret_links = links;
    return KVT_OK;
}
