// The 8-bit storage formats: int8, float8_e4m3fn, float8_e5m2. Decoding is exact (subnormals, NaN and Inf codes too);
// encoding rounds to nearest even and saturates to the largest finite value, NaN stays NaN (int8: 0).
#pragma once
#include <array>

#include "simd.hpp"

namespace tilewise {

struct Int8 { int8_t value; };
struct E4m3 { uint8_t bits; };
struct E5m2 { uint8_t bits; };

template <class T> constexpr bool kIsFloat8 = std::is_same_v<T, E4m3> || std::is_same_v<T, E5m2>;
template <class T> constexpr bool kIs8Bit = kIsFloat8<T> || std::is_same_v<T, Int8>;

// Mantissa bits, exponent bias, the first code past the finite ones, the largest finite code, NaN.
template <class T> struct Float8;
template <> struct Float8<E4m3> {
  static constexpr uint32_t mantissa = 3, bias = 7, special = 0x7f, largest = 0x7e, nan = 0x7f;
};
template <> struct Float8<E5m2> {
  static constexpr uint32_t mantissa = 2, bias = 15, special = 0x7c, largest = 0x7b, nan = 0x7e;
};

// ---- the magnitude of a code as bf16, which holds every one of them exactly -----------------------------------------
constexpr uint32_t bf16_of_integer(uint32_t n, int32_t exponent) {  // n * 2^exponent, n < 256
  if (n == 0) return 0;
  uint32_t top = 0;
  while (n >> (top + 1)) top++;
  return static_cast<uint32_t>(127 + exponent + static_cast<int32_t>(top)) << 7 | ((n << (7 - top)) & 0x7f);
}
template <class T> constexpr uint32_t bf16_of_magnitude(uint32_t code) {  // code: 7 bits
  if constexpr (std::is_same_v<T, Int8>) return bf16_of_integer(code, 0);
  else {
    using F = Float8<T>;
    const uint32_t exponent = code >> F::mantissa, fraction = code & ((1u << F::mantissa) - 1);
    if (code >= F::special) return 0x7f80u | (code == F::special && std::is_same_v<T, E5m2> ? 0u : 0x40u);
    if (exponent == 0) return bf16_of_integer(fraction, 1 - static_cast<int32_t>(F::bias + F::mantissa));
    return (exponent + 127 - F::bias) << 7 | fraction << (7 - F::mantissa);
  }
}
template <class T> constexpr std::array<uint16_t, 128> make_magnitudes() {
  std::array<uint16_t, 128> table{};
  for (uint32_t i = 0; i < 128; i++) table[i] = static_cast<uint16_t>(bf16_of_magnitude<T>(i));
  return table;
}
template <class T> inline constexpr std::array<uint16_t, 128> kMagnitudes = make_magnitudes<T>();

TW_INLINE bf16 as_bf16(Int8 x) {
  const uint32_t n = x.value < 0 ? -static_cast<int32_t>(x.value) : x.value;  // 128 is past the table
  const uint32_t magnitude = n == 128 ? 0x4300u : kMagnitudes<Int8>[n];
  return bf16{static_cast<uint16_t>(magnitude | (x.value < 0 ? 0x8000u : 0u))};
}
template <class T, class = std::enable_if_t<kIsFloat8<T>>> TW_INLINE bf16 as_bf16(T x) {
  return bf16{static_cast<uint16_t>(kMagnitudes<T>[x.bits & 0x7f] | (x.bits & 0x80u) << 8)};
}
TW_INLINE float to_float(Int8 x) { return static_cast<float>(x.value); }
template <class T, class = std::enable_if_t<kIsFloat8<T>>> TW_INLINE float to_float(T x) {
  return to_float(as_bf16(x));
}

// ---- encoding -------------------------------------------------------------------------------------------------------
template <class T> TW_INLINE T encode8(float x) {
  if constexpr (std::is_same_v<T, Int8>) {
    const float clipped = x > 127.0f ? 127.0f : x > -127.0f ? x : x == x ? -127.0f : 0.0f;
    const float magic = 12582912.0f;  // 1.5 * 2^23: the sum rounds to a whole number, ties to even
    return Int8{static_cast<int8_t>(static_cast<int32_t>((clipped + magic) - magic))};
  } else {
    using F = Float8<T>;
    constexpr uint32_t drop = 23 - F::mantissa, smallest = (128 - F::bias) << 23;      // 2^(1 - bias), the least normal
    constexpr uint32_t magic = (127 + 23 + 1 - F::bias - F::mantissa) << 23;  // its ulp is that of the subnormals
    uint32_t u, m, n;
    std::memcpy(&u, &x, 4);
    const uint32_t sign = u >> 24 & 0x80u, size = u & 0x7fffffffu;
    float f, shift;
    std::memcpy(&f, &size, 4);
    m = magic;
    std::memcpy(&shift, &m, 4);
    const float sum = f + shift;
    std::memcpy(&n, &sum, 4);
    const uint32_t normal =
        ((size + ((1u << (drop - 1)) - 1) + ((size >> drop) & 1)) >> drop) - ((127 - F::bias) << F::mantissa);
    const uint32_t rounded = size < smallest ? n - magic : normal;
    const uint32_t finite = rounded > F::largest ? F::largest : rounded;
    return T{static_cast<uint8_t>(sign | (size > 0x7f800000u ? F::nan : finite))};
  }
}
// float64 passes through float32 (as everywhere these formats are used), but whole numbers are rounded once.
template <class T> TW_INLINE T encode8(double x) {
  if constexpr (std::is_same_v<T, Int8>) {
    const double clipped = x > 127.0 ? 127.0 : x > -127.0 ? x : x == x ? -127.0 : 0.0;
    return Int8{static_cast<int8_t>(std::nearbyint(clipped))};
  } else return encode8<T>(static_cast<float>(x));
}

// ---- kLanes codes as float32 ----------------------------------------------------------------------------------------
using i8v = int8_t __attribute__((vector_size(kLanes)));

TW_INLINE f32v load(const Int8* p) {
#if TW_LANES == 16 && defined(__AVX512F__)
  return (f32v)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
#elif TW_LANES == 8 && defined(__AVX2__)
  return (f32v)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)));
#else
  return __builtin_convertvector(load_as<i8v>(p), f32v);
#endif
}

// float8 goes through float16: e5m2 is its upper byte; e4m3's seven bits, one place lower, are the value * 2^-8, but
// for the NaN code. load_raw leaves that power of two (kRawFactor) to whoever multiplies later anyway.
#if TW_LANES == 16 && defined(__AVX512F__)
#define TW_FLOAT8_BY_F16 1
TW_INLINE __m256i float8_words(const void* p) {
  return _mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i*)p)), 8);
}
TW_INLINE __m256i e4m3_half(__m256i word) {
  const __m256i half = _mm256_and_si256(_mm256_srai_epi16(word, 1), _mm256_set1_epi16((short)0xbfff));
  const __m256i size = _mm256_and_si256(half, _mm256_set1_epi16(0x7fff));
  return _mm256_or_si256(half, _mm256_cmpeq_epi16(size, _mm256_set1_epi16(0x3f80)));
}
TW_INLINE f32v from_half(__m256i half) { return (f32v)_mm512_cvtph_ps(half); }
#elif TW_LANES == 8 && defined(__AVX2__) && defined(__F16C__)
#define TW_FLOAT8_BY_F16 1
TW_INLINE __m128i float8_words(const void* p) {
  return _mm_unpacklo_epi8(_mm_setzero_si128(), _mm_loadl_epi64((const __m128i*)p));
}
TW_INLINE __m128i e4m3_half(__m128i word) {
  const __m128i half = _mm_and_si128(_mm_srai_epi16(word, 1), _mm_set1_epi16((short)0xbfff));
  const __m128i size = _mm_and_si128(half, _mm_set1_epi16(0x7fff));
  return _mm_or_si128(half, _mm_cmpeq_epi16(size, _mm_set1_epi16(0x3f80)));
}
TW_INLINE f32v from_half(__m128i half) { return (f32v)_mm256_cvtph_ps(half); }
#else
#define TW_FLOAT8_BY_F16 0
#endif
#if TW_LANES == 8 && TW_FLOAT8_BY_F16
TW_INLINE __m256i e4m3_halves(const void* p) {  // sixteen at once
  const __m256i word = _mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i*)p)), 8);
  const __m256i half = _mm256_and_si256(_mm256_srai_epi16(word, 1), _mm256_set1_epi16((short)0xbfff));
  const __m256i size = _mm256_and_si256(half, _mm256_set1_epi16(0x7fff));
  return _mm256_or_si256(half, _mm256_cmpeq_epi16(size, _mm256_set1_epi16(0x3f80)));
}
#endif

template <class T> constexpr float kRawFactor = TW_FLOAT8_BY_F16 && std::is_same_v<T, E4m3> ? 256.0f : 1.0f;

template <class T> TW_INLINE f32v load_raw(const T* p) {
  if constexpr (!kIsFloat8<T>) return load(p);
  else {
#if TW_FLOAT8_BY_F16
    if constexpr (std::is_same_v<T, E4m3>) return from_half(e4m3_half(float8_words(p)));
    else return from_half(float8_words(p));
#else
    f32v v{};
    TW_UNROLL(16) for (int i = 0; i < kLanes; i++) v[i] = to_float(p[i]);
    return v;
#endif
  }
}
template <class T> TW_INLINE void load_raw_pair(const T* p, f32v& low, f32v& high) {  // 2 * kLanes elements
#if TW_LANES == 8 && TW_FLOAT8_BY_F16
  if constexpr (std::is_same_v<T, E4m3>) {
    const __m256i half = e4m3_halves(p);
    low = from_half(_mm256_castsi256_si128(half));
    high = from_half(_mm256_extracti128_si256(half, 1));
    return;
  }
#endif
  low = load_raw(p);
  high = load_raw(p + kLanes);
}
template <class T, class = std::enable_if_t<kIsFloat8<T>>> TW_INLINE f32v load(const T* p) {
  if constexpr (kRawFactor<T> == 1.0f) return load_raw(p);
  else return load_raw(p) * splat(kRawFactor<T>);
}

}  // namespace tilewise
