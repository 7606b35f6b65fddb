/*
 * The reference of quantise: values as doubles, which hold every element, code and product exactly, and the definitions
 * of the header word by word. Slow, and nothing of it is shared with the others.
 */
#include "kernels/quantise.h"
#include "runtime/base/bytes.h"

static double power_of_two(int32_t k)
{
    double power = 1;
    for (; k > 0; k--) power *= 2;
    for (; k < 0; k++) power /= 2;
    return power;
}

static double magnitude_of(double value) { return value < 0 ? -value : value; }

/* An element: a finite value and its sign, or not finite. */
struct element {
    double value;
    bool is_negative, is_finite;
};

/* sign, exponent_bits and fraction_bits as IEEE 754 has them. */
static struct element element_of(uint32_t bits, int32_t exponent_bits, int32_t fraction_bits)
{
    const int32_t bias = (1 << (exponent_bits - 1)) - 1;
    const int32_t exponent = (int32_t)(bits >> fraction_bits & ((1u << exponent_bits) - 1));
    const uint32_t fraction = bits & ((1u << fraction_bits) - 1);
    struct element e = { .is_negative = bits >> (exponent_bits + fraction_bits) & 1,
                         .is_finite = exponent != (1 << exponent_bits) - 1 };
    if (!e.is_finite) return e;
    const double whole = exponent == 0 ? fraction : (double)fraction + (double)(1u << fraction_bits);
    e.value = whole * power_of_two((exponent == 0 ? 1 : exponent) - bias - fraction_bits);
    if (e.value < power_of_two(-126)) e.value = 0;
    if (e.is_negative) e.value = -e.value;
    return e;
}

static struct element load(enum kvt_dtype dtype, const uint8_t *page, size_t index)
{
    if (dtype == KVT_DTYPE_FP32) return element_of(kvt_load_u32(page + 4 * index), 8, 23);
    const uint16_t bits = kvt_load_u16(page + 2 * index);
    return dtype == KVT_DTYPE_BF16 ? element_of(bits, 8, 7) : element_of(bits, 5, 10);
}

/* The value's bits: exact, as the value is one of the type, or beyond its largest one, which then stands for it. */
static uint32_t bits_of(double value, bool is_negative, int32_t exponent_bits, int32_t fraction_bits)
{
    const int32_t bias = (1 << (exponent_bits - 1)) - 1;
    const uint32_t sign = (uint32_t)is_negative << (exponent_bits + fraction_bits);
    const uint32_t largest = (((1u << exponent_bits) - 1) << fraction_bits) - 1;
    const double magnitude = magnitude_of(value);
    int32_t exponent = 1 - bias;
    while (exponent <= bias && magnitude >= power_of_two(exponent + 1)) exponent++;
    if (exponent > bias) return sign | largest;
    const uint32_t whole = (uint32_t)(magnitude * power_of_two(fraction_bits - exponent));
    return sign | (uint32_t)(((uint32_t)(exponent + bias - 1) << fraction_bits) + whole);
}

static void store(enum kvt_dtype dtype, uint8_t *page, size_t index, double value, bool is_negative, bool is_nan)
{
    if (dtype == KVT_DTYPE_FP32) {
        const uint32_t nan = (uint32_t)is_negative << 31 | 0x7fc00000u;
        kvt_store_u32(page + 4 * index, is_nan ? nan : bits_of(value, is_negative, 8, 23));
        return;
    }
    const bool is_bf16 = dtype == KVT_DTYPE_BF16;
    const uint32_t nan = (uint32_t)is_negative << 15 | (is_bf16 ? 0x7fc0u : 0x7e00u);
    const uint32_t bits = is_bf16 ? bits_of(value, is_negative, 8, 7) : bits_of(value, is_negative, 5, 10);
    kvt_store_u16(page + 2 * index, (uint16_t)(is_nan ? nan : bits));
}

/* ---- Codes: a magnitude's, from 0 on in the order of what they are worth --------------------------------------- */

static double worth(enum kvt_quant_code code, uint32_t magnitude)
{
    if (code == KVT_QUANT_INT8) return magnitude;
    const int32_t exponent = (int32_t)(magnitude >> 3);
    const double fraction = magnitude & 7;
    return exponent == 0 ? fraction / 512 : (8 + fraction) * power_of_two(exponent - 10);
}

static uint32_t largest_code(enum kvt_quant_code code) { return code == KVT_QUANT_INT8 ? 127 : 0x7e; }

/* The nearest code, of two equally near ones the even; one more than the largest when the value is nearer to that. */
static uint32_t nearest(enum kvt_quant_code code, double magnitude)
{
    uint32_t below = 0, past = largest_code(code) + 1;
    while (past - below > 1) {
        const uint32_t middle = (below + past) / 2;
        if (worth(code, middle) <= magnitude) below = middle;
        else past = middle;
    }
    const double down = magnitude - worth(code, below), up = worth(code, below + 1) - magnitude;
    return down < up || (down == up && below % 2 == 0) ? below : below + 1;
}

static int32_t exponent_of_row(const struct kvt_quant_shape *shape, double largest)
{
    int32_t k = shape->dtype != KVT_DTYPE_FP16 ? -117 : shape->code == KVT_QUANT_FP8 ? -15 : -24;
    while (nearest(shape->code, largest / power_of_two(k)) > largest_code(shape->code)) k++;
    return k;
}

static void quantise(const struct kvt_quant_shape *shape, const uint8_t *page, uint8_t *ret_codes, uint8_t *ret_scales)
{
    for (size_t r = 0; r < shape->rows; r++) {
        double largest = 0;
        for (size_t i = r * shape->width; i < (r + 1) * shape->width; i++) {
            const struct element e = load(shape->dtype, page, i);
            if (e.is_finite && magnitude_of(e.value) > largest) largest = magnitude_of(e.value);
        }
        const int32_t k = exponent_of_row(shape, largest);
        ret_scales[r] = (uint8_t)(k + 127);
        for (size_t i = r * shape->width; i < (r + 1) * shape->width; i++) {
            const struct element e = load(shape->dtype, page, i);
            const uint32_t magnitude = nearest(shape->code, magnitude_of(e.value) / power_of_two(k));
            if (shape->code == KVT_QUANT_INT8)
                ret_codes[i] = (uint8_t)(!e.is_finite ? 0x80 : e.is_negative ? 0u - magnitude : magnitude);
            else ret_codes[i] = (uint8_t)((uint32_t)e.is_negative << 7 | (e.is_finite ? magnitude : 0x7f));
        }
    }
}

static void dequantise(const struct kvt_quant_shape *shape, const uint8_t *codes, const uint8_t *scales,
                       uint8_t *ret_page)
{
    for (size_t i = 0; i < (size_t)shape->rows * shape->width; i++) {
        const double power = power_of_two((int32_t)scales[i / shape->width] - 127);
        if (shape->code == KVT_QUANT_INT8) {
            const bool is_negative = codes[i] > 0x80;
            const double value = (is_negative ? (double)codes[i] - 256 : codes[i]) * power;
            store(shape->dtype, ret_page, i, value, is_negative, codes[i] == 0x80);
        } else {
            const double value = worth(KVT_QUANT_FP8, codes[i] & 0x7f) * power;
            store(shape->dtype, ret_page, i, value, codes[i] >> 7, (codes[i] & 0x7f) == 0x7f);
        }
    }
}

static bool is_supported(void) { return true; }

const struct kvt_quant_ops kvt_quant_ops_ref = {
    .name = "reference",
    .is_supported = is_supported,
    .quantise = quantise,
    .dequantise = dequantise,
};
