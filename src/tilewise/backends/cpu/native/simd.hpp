// The only file that knows the instruction set. Vectors are GCC/Clang vector extensions of kLanes floats;
// intrinsics appear where the extensions have no word: max, the bf16 pair product, 16-bit conversions.
// TILEWISE_LANES overrides the width, so that the 16-lane code (and its emulated bf16 product) runs on any CPU.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define TW_INLINE static inline __attribute__((always_inline))
#define TW_UNROLL(n) TW_PRAGMA(GCC unroll n)
#define TW_PRAGMA(x) _Pragma(#x)
#define TW_NOINLINE __attribute__((noinline))

namespace tilewise {

#if defined(TILEWISE_LANES)
#define TW_LANES TILEWISE_LANES
#elif defined(__AVX512F__)
#define TW_LANES 16
#elif defined(__AVX2__)
#define TW_LANES 8
#else
#define TW_LANES 4
#endif
constexpr int kLanes = TW_LANES;
constexpr int kBytes = kLanes * 4;

// True where the bf16 pair product exists, in silicon or (TILEWISE_EMULATE_BF16) emulated for tests.
#if defined(__AVX512BF16__) || defined(TILEWISE_EMULATE_BF16)
constexpr bool kHasBf16Dot = true;
#else
constexpr bool kHasBf16Dot = false;
#endif

using f32v = float __attribute__((vector_size(kBytes)));
using i32v = int32_t __attribute__((vector_size(kBytes)));
using u32v = uint32_t __attribute__((vector_size(kBytes)));
using f64v = double __attribute__((vector_size(kBytes)));  // kLanes / 2 doubles
using i64v = int64_t __attribute__((vector_size(kBytes)));
using u16v = uint16_t __attribute__((vector_size(kLanes * 2)));

using bf16 = struct Bf16 { uint16_t bits; };
using f16 = _Float16;

TW_INLINE float to_float(float x) { return x; }
TW_INLINE double to_float(double x) { return x; }
TW_INLINE float to_float(f16 x) { return static_cast<float>(x); }
TW_INLINE float to_float(bf16 x) {
  uint32_t u = static_cast<uint32_t>(x.bits) << 16;
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}

// Round to nearest even; a NaN stays a (quiet) NaN.
TW_INLINE bf16 to_bf16(float x) {
  uint32_t u; std::memcpy(&u, &x, 4);
  if ((u & 0x7fffffffu) > 0x7f800000u) return bf16{static_cast<uint16_t>((u >> 16) | 0x40)};
  return bf16{static_cast<uint16_t>((u + 0x7fff + ((u >> 16) & 1)) >> 16)};
}
template <class T, class F> TW_INLINE T from_float(F x) {  // F: float or double
  if constexpr (std::is_same_v<T, bf16>) return to_bf16(static_cast<float>(x));
  else return static_cast<T>(x);
}

// ---- whole vectors -------------------------------------------------------------------------------------------
template <class V, class T> TW_INLINE V load_as(const T* p) { V v; std::memcpy(&v, p, sizeof v); return v; }
TW_INLINE f32v load(const float* p) { return load_as<f32v>(p); }
TW_INLINE f64v load(const double* p) { return load_as<f64v>(p); }
TW_INLINE void store(float* p, f32v v) { std::memcpy(p, &v, sizeof v); }
TW_INLINE void store(double* p, f64v v) { std::memcpy(p, &v, sizeof v); }
TW_INLINE f32v splat(float x) { return x - f32v{}; }  // x - 0 is x, -0 too; 0 + x would cost an addition
TW_INLINE f64v splat(double x) { return x - f64v{}; }

template <class T> struct VectorOf;
template <> struct VectorOf<float> { using type = f32v; using integer = i32v; static constexpr int lanes = kLanes; };
template <> struct VectorOf<double> {
  using type = f64v;
  using integer = i64v;
  static constexpr int lanes = kLanes / 2;
};

// Element i of the result is element from(i) of a followed by b; known at compile time, so one or two instructions.
template <int (*from)(int), class V, std::size_t... i> TW_INLINE V shuffle(V a, V b, std::index_sequence<i...>) {
  return __builtin_shufflevector(a, b, from(static_cast<int>(i))...);
}
template <int (*from)(int), class V> TW_INLINE V shuffle(V a, V b) {
  return shuffle<from>(a, b, std::make_index_sequence<sizeof(V) / sizeof(a[0])>{});
}

// A NaN in either operand may be lost: callers never rely on max to carry NaN.
TW_INLINE f32v vmax(f32v a, f32v b) {
#if TW_LANES == 16 && defined(__AVX512F__)
  return (f32v)_mm512_max_ps((__m512)a, (__m512)b);
#elif TW_LANES == 8 && defined(__AVX2__)
  return (f32v)_mm256_max_ps((__m256)a, (__m256)b);
#elif TW_LANES == 4 && defined(__SSE2__)
  return (f32v)_mm_max_ps((__m128)a, (__m128)b);
#elif TW_LANES == 4 && defined(__aarch64__)
  return (f32v)vmaxnmq_f32((float32x4_t)a, (float32x4_t)b);
#else
  return a > b ? a : b;
#endif
}
TW_INLINE f64v vmax(f64v a, f64v b) { return a > b ? a : b; }

template <class V> TW_INLINE auto reduce_max(V a) {
  constexpr int n = sizeof(V) / sizeof(a[0]);
  auto m = a[0];
  TW_UNROLL(16) for (int i = 1; i < n; i++) m = m > a[i] ? m : a[i];
  return m;
}
template <class V> TW_INLINE auto reduce_add(V a) {  // a fixed tree: same bits every time
  constexpr int n = sizeof(V) / sizeof(a[0]);
  using T = std::remove_reference_t<decltype(a[0])>;
  std::remove_cv_t<T> s[n];
  std::memcpy(s, &a, sizeof a);
  TW_UNROLL(4) for (int h = n / 2; h; h /= 2)
    TW_UNROLL(8) for (int i = 0; i < h; i++) s[i] += s[i + h];
  return s[0];
}

// The greater of x and low; a NaN in x stays.
TW_INLINE f32v at_least(f32v x, f32v low) {
#if TW_LANES == 16 && defined(__AVX512F__)
  return (f32v)_mm512_max_ps((__m512)low, (__m512)x);
#elif TW_LANES == 8 && defined(__AVX2__)
  return (f32v)_mm256_max_ps((__m256)low, (__m256)x);
#elif TW_LANES == 4 && defined(__SSE2__)
  return (f32v)_mm_max_ps((__m128)low, (__m128)x);
#else
  return x < low ? low : x;
#endif
}
TW_INLINE f64v at_least(f64v x, f64v low) { return x < low ? low : x; }

// 2^x for x <= 127, relative error below 1.2e-7; exactly 0 for x < -126.5 (so -inf gives 0); NaN stays NaN.
// A magic number rounds x and leaves the biased exponent in the low bits; then a minimax polynomial on [-0.5, 0.5].
// The same for n vectors in step: n chains fill the pipes where one would wait for itself.
template <int n> TW_INLINE void exp2v(f32v (&x)[n]) {
  const f32v magic = splat(12583039.0f);
  f32v p[n];
  u32v power[n];
  TW_UNROLL(8) for (int i = 0; i < n; i++) x[i] = at_least(x[i], splat(-127.0f));
  TW_UNROLL(8) for (int i = 0; i < n; i++) {
    const f32v t = x[i] + magic;
    x[i] -= t - magic;
    power[i] = (u32v)t << 23;
  }
  TW_UNROLL(8) for (int i = 0; i < n; i++) p[i] = splat(1.5353361813476e-4f) * x[i] + splat(1.3398874445381e-3f);
  TW_UNROLL(8) for (int i = 0; i < n; i++) p[i] = p[i] * x[i] + splat(9.6184373583034e-3f);
  TW_UNROLL(8) for (int i = 0; i < n; i++) p[i] = p[i] * x[i] + splat(5.5503324710270e-2f);
  TW_UNROLL(8) for (int i = 0; i < n; i++) p[i] = p[i] * x[i] + splat(2.4022647913620e-1f);
  TW_UNROLL(8) for (int i = 0; i < n; i++) p[i] = p[i] * x[i] + splat(6.9314720285513e-1f);
  TW_UNROLL(8) for (int i = 0; i < n; i++) p[i] = p[i] * x[i] + splat(1.0f);
  TW_UNROLL(8) for (int i = 0; i < n; i++) x[i] = p[i] * (f32v)power[i];
}
TW_INLINE f32v exp2v(f32v x) {
  f32v v[1] = {x};
  exp2v(v);
  return v[0];
}
TW_INLINE f64v exp2v(f64v x) {  // relative error below 4e-16 for x <= 1023, 0 below -1022.5
  const f64v magic = splat(6755399441056767.0);  // 1.5 * 2^52 + 1023
  const f64v y = at_least(x, splat(-1023.0)), t = y + magic, r = y - (t - magic);
  f64v p = splat(2.5678435993488206e-11);
  constexpr double c[] = {4.4455382718708115e-10, 7.0549116208011233e-9, 1.0178086009239700e-7, 1.3215486790144310e-6,
                          1.5252733804059840e-5,  1.5403530393381610e-4, 1.3333558146428443e-3, 9.6181291076284772e-3,
                          5.5504108664821580e-2,  2.4022650695910072e-1, 6.9314718055994531e-1, 1.0};
  TW_UNROLL(16) for (int i = 0; i < 12; i++) p = p * r + splat(c[i]);
  return p * (f64v)((i64v)t << 52);
}

template <int n> TW_INLINE void exp2v(f64v (&x)[n]) {
  TW_UNROLL(8) for (int i = 0; i < n; i++) x[i] = exp2v(x[i]);
}

// ---- 16-bit storage ------------------------------------------------------------------------------------------
TW_INLINE f32v load(const bf16* p) {
  const u16v h = load_as<u16v>(p);
  return (f32v)(__builtin_convertvector(h, u32v) << 16);
}
TW_INLINE f32v load(const f16* p) {
#if TW_LANES == 16 && defined(__AVX512F__)
  return (f32v)_mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256((const __m256i*)p));
#elif TW_LANES == 8 && defined(__F16C__)
  return (f32v)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
#else
  f32v v;
  TW_UNROLL(16) for (int i = 0; i < kLanes; i++) v[i] = static_cast<float>(p[i]);
  return v;
#endif
}
TW_INLINE u16v round_bf16(f32v v) {  // nearest even, NaN kept
  const u32v u = (u32v)v;
  const u32v rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const u32v nan = (u >> 16) | 0x40u;
  return __builtin_convertvector(v == v ? rounded : nan, u16v);
}
TW_INLINE void store(bf16* p, f32v v) {
#if TW_LANES == 16 && defined(__AVX512BF16__)
  _mm256_storeu_si256((__m256i*)p, (__m256i)_mm512_cvtneps_pbh((__m512)v));
#else
  const u16v h = round_bf16(v);
  std::memcpy(p, &h, sizeof h);
#endif
}
TW_INLINE void store(f16* p, f32v v) {
#if TW_LANES == 16 && defined(__AVX512F__)
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT));
#elif TW_LANES == 8 && defined(__F16C__)
  _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT));
#else
  TW_UNROLL(16) for (int i = 0; i < kLanes; i++) p[i] = static_cast<f16>(v[i]);
#endif
}

// ---- products in units: a unit is one word that a lane multiplies by: an f32, an f64, a pair of bf16 -------------
struct F32Unit {
  using element = float;  // what a word is made of
  using word = float;     // what arrays of units hold
  using real = float;     // what is accumulated
  static constexpr int pair = 1;
  TW_INLINE f32v splat(const float* p) { return *p - f32v{}; }
  TW_INLINE f32v load(const float* p) { return load_as<f32v>(p); }
  TW_INLINE f32v fma(f32v a, f32v b, f32v c) { return a * b + c; }
};
struct F64Unit {
  using element = double;
  using word = double;
  using real = double;
  static constexpr int pair = 1;
  TW_INLINE f64v splat(const double* p) { return *p - f64v{}; }
  TW_INLINE f64v load(const double* p) { return load_as<f64v>(p); }
  TW_INLINE f64v fma(f64v a, f64v b, f64v c) { return a * b + c; }
};
struct Bf16Unit {
  using element = bf16;
  using word = uint32_t;
  using real = float;
  static constexpr int pair = 2;
  TW_INLINE u32v splat(const uint32_t* p) { uint32_t u; std::memcpy(&u, p, 4); return u32v{} + u; }
  TW_INLINE u32v load(const uint32_t* p) { return load_as<u32v>(p); }
  TW_INLINE f32v fma(u32v a, u32v b, f32v c) {
#if TW_LANES == 16 && defined(__AVX512BF16__)
    return (f32v)_mm512_dpbf16_ps((__m512)c, (__m512bh)a, (__m512bh)b);
#else
    const f32v lo = (f32v)(a << 16) * (f32v)(b << 16), hi = (f32v)(a & 0xffff0000u) * (f32v)(b & 0xffff0000u);
    return c + hi + lo;
#endif
  }
};

TW_INLINE void prefetch(const void* p) { __builtin_prefetch(p, 0, 2); }

}  // namespace tilewise
