// Rows of pages as operands, straight from memory: a group of elements becomes one or more vectors of words. The order
// of the elements inside a group is whatever costs least: `place` says where element i went; queries, outputs follow.
//   Wide<T>    words are float32
//   Paired<T>  words are bf16 pairs (the pair product): pairs of a key's elements for scores, of two keys for values
#pragma once
#include "formats.hpp"

namespace tilewise {

using half_words = uint16_t __attribute__((vector_size(kBytes)));  // 2 * kLanes 16-bit elements

template <class T> struct Wide {
  using Unit = F32Unit;
  using Word = float;
  using Vector = f32v;
  static constexpr int group = 2 * kLanes;    // elements read at once
  static constexpr int key_vectors = 2;       // vectors a group becomes as a key
  static constexpr int value_vectors = 2;     // ... and as a step of values
  static constexpr int step = 1;              // keys that one step of the value product takes
  static constexpr float factor = kRawFactor<T>;
  static constexpr bool alternating = std::is_same_v<T, bf16>;  // even elements first, then the odd ones

  static constexpr int place(int i) { return alternating ? i % 2 * kLanes + i / 2 : i; }        // of a query's element
  static constexpr int value_place(int i) { return place(i); }  // of an output's element
  TW_INLINE void load_key(const T* p, Vector* out) {
    if constexpr (alternating) {
      const u32v u = load_as<u32v>(p);
      out[0] = (f32v)(u << 16);
      out[1] = (f32v)(u & 0xffff0000u);
    } else {
      load_raw_pair(p, out[0], out[1]);
    }
  }
  TW_INLINE void load_value(const T* p, const T*, Vector* out) { load_key(p, out); }
};

// Unpacking works inside blocks of 128 bits: the lower or the upper halves of each block of two vectors, interleaved.
constexpr int lower_words(int i) { return i / 8 * 8 + i % 8 / 2 + i % 2 * 2 * kLanes; }
constexpr int upper_words(int i) { return lower_words(i) + 4; }

#if TW_LANES == 16 && defined(__AVX512BF16__) && !defined(__AVX512VBMI__)
constexpr bool kByteLookup = false;
#else
constexpr bool kByteLookup = true;  // by vpermi2b; in the portable form by a table, in the same order
#endif
struct Bytes { uint8_t low[128], high[128]; };
template <class T> constexpr Bytes split_magnitudes() {
  Bytes b{};
  for (uint32_t i = 0; i < 128; i++) {
    b.low[i] = static_cast<uint8_t>(bf16_of_magnitude<T>(i) & 0xff);
    b.high[i] = static_cast<uint8_t>(bf16_of_magnitude<T>(i) >> 8);
  }
  return b;
}
template <class T> inline constexpr Bytes kBytesOf = split_magnitudes<T>();

template <class T> struct Paired {
  using Unit = Bf16Unit;
  using Word = uint32_t;
  using Vector = u32v;
  static constexpr int group = (kIs8Bit<T> ? 4 : 2) * kLanes;
  static constexpr int key_vectors = kIs8Bit<T> ? 2 : 1;
  static constexpr int value_vectors = 2 * key_vectors;
  static constexpr int step = 2;
  static constexpr float factor = 1.0f;

  // Bytes are looked up, and zipped with their upper halves: block by block of 16, eight to each vector.
  static constexpr int place(int i) {
    return kIs8Bit<T> && kByteLookup ? i % 16 / 8 * 2 * kLanes + i / 16 * 8 + i % 8 : i;
  }
  static constexpr int value_place(int i) {
    const int at = place(i), vector = at / (2 * kLanes), h = at % (2 * kLanes);
    return (vector * 2 + h % 8 / 4) * kLanes + h / 8 * 4 + h % 4;
  }
  TW_INLINE void load_key(const T* p, Vector* out) {
    if constexpr (!kIs8Bit<T>) out[0] = load_as<u32v>(p);
    else {
#if TW_LANES == 16 && defined(__AVX512VBMI__)
      const __m512i x = _mm512_loadu_si512(p);
      const __m512i code = std::is_same_v<T, Int8> ? _mm512_abs_epi8(x) : x;  // bit 7 is not part of the index
      __m512i high =
          _mm512_permutex2var_epi8(load_as<__m512i>(kBytesOf<T>.high), code, load_as<__m512i>(kBytesOf<T>.high + 64));
      const __m512i low =
          _mm512_permutex2var_epi8(load_as<__m512i>(kBytesOf<T>.low), code, load_as<__m512i>(kBytesOf<T>.low + 64));
      high = _mm512_ternarylogic_epi32(high, x, _mm512_set1_epi8((char)0x80), 0xf8);
      if constexpr (std::is_same_v<T, Int8>)  // -128 has no magnitude in the table
        high =
            _mm512_mask_mov_epi8(high, _mm512_cmpeq_epi8_mask(x, _mm512_set1_epi8(-128)), _mm512_set1_epi8((char)0xc3));
      out[0] = (u32v)_mm512_unpacklo_epi8(low, high);
      out[1] = (u32v)_mm512_unpackhi_epi8(low, high);
#elif TW_LANES == 16 && defined(__AVX512BF16__)
      TW_UNROLL(2) for (int j = 0; j < 2; j++) {
        const f32v low = load(p + 2 * j * kLanes), high = load(p + (2 * j + 1) * kLanes);
        out[j] = (u32v)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
      }
#else
      uint16_t h[group];
      for (int i = 0; i < group; i++) h[place(i)] = as_bf16(p[i]).bits;
      std::memcpy(out, h, sizeof h);
#endif
    }
  }
  TW_INLINE void load_value(const T* p, const T* next, Vector* out) {
    Vector a[key_vectors], b[key_vectors];
    load_key(p, a);
    load_key(next, b);
    TW_UNROLL(2) for (int j = 0; j < key_vectors; j++) {
      out[2 * j] = (u32v)shuffle<lower_words>((half_words)a[j], (half_words)b[j]);
      out[2 * j + 1] = (u32v)shuffle<upper_words>((half_words)a[j], (half_words)b[j]);
    }
  }
};

template <class W> constexpr int64_t padded_columns(int64_t n) { return (n + W::group - 1) / W::group * W::group; }

}  // namespace tilewise
