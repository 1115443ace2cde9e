// From products to logits, where more than a positive scale is asked for: soft cap, bias, quantised keys.
#pragma once
#include "arguments.hpp"
#include "simd.hpp"

namespace tilewise {

constexpr double kLog2e = 1.4426950408889634, kLn2 = 0.6931471805599453;

// tanh, relative error about 1.5e-7 also near 0; saturates, never overflows; NaN stays NaN.
// u = e^2x - 1 is formed as 2^n (2^r - 1) + (2^n - 1), so small x lose nothing; then u / (u + 2).
TW_INLINE f32v tanhv(f32v x) {
  const f32v magic = splat(12583039.0f), limit = splat(9.02f);
  f32v y = -at_least(-at_least(x, -limit), -limit) * splat(2.8853900817779268f);
  const f32v t = y + magic, r = y - (t - magic), power = (f32v)((i32v)t << 23);
  f32v p = splat(1.5403512348098e-4f);
  p = p * r + splat(1.3390735476637e-3f);
  p = p * r + splat(9.6182374950175e-3f);
  p = p * r + splat(5.5503574336388e-2f);
  p = p * r + splat(2.4022649794959e-1f);
  p = p * r + splat(6.9314718792669e-1f);
  const f32v u = p * r * power + (power - splat(1.0f));
  return u / (u + splat(2.0f));
}
TW_INLINE f64v tanhv(f64v x) {
  f64v y;
  TW_UNROLL(8) for (int i = 0; i < kLanes / 2; i++) y[i] = std::tanh(x[i]);
  return y;
}

template <class real> struct LogitRule {
  real factor = 1;            // logit = factor * product, or cap * tanh(inner * product)
  real cap = 0, inner = 0;
};

// s over vectors [v0, v1); key_scale and bias may be null, else are read over the same columns.
template <bool capped, bool scaled, bool biased, class real>
TW_INLINE void to_logits(const LogitRule<real>& rule, int v0, int v1, real* s, const real* key_scale, const real* bias) {
  constexpr int lanes = VectorOf<real>::lanes;
  for (int i = v0 * lanes; i < v1 * lanes; i += lanes) {
    auto x = load(s + i);
    if constexpr (scaled) x *= load(key_scale + i);
    if constexpr (capped) x = tanhv(x * splat(rule.inner)) * splat(rule.cap);
    else x *= splat(rule.factor);
    if constexpr (biased) x += load(bias + i);
    store(s + i, x);
  }
}
template <class real>
TW_NOINLINE void to_logits(const LogitRule<real>& rule, int v0, int v1, real* s, const real* key_scale, const real* bias) {
  const auto go = [&](auto capped, auto scaled) {
    if (bias) to_logits<capped.value, scaled.value, true>(rule, v0, v1, s, key_scale, bias);
    else to_logits<capped.value, scaled.value, false>(rule, v0, v1, s, key_scale, bias);
  };
  const std::true_type yes;
  const std::false_type no;
  if (rule.cap > 0) key_scale ? go(yes, yes) : go(yes, no);
  else key_scale ? go(no, yes) : go(no, no);
}

// Entries [begin, end) of a bias row of any float type and stride; nothing outside is read.
template <class real> void load_bias(const void* row, DType dtype, int64_t stride, int64_t first, int begin, int end, real* out) {
  const auto copy = [&](const auto* p) {
    if (stride == 1) for (int c = begin; c < end; c++) out[c] = static_cast<real>(to_float(p[first + c]));
    else for (int c = begin; c < end; c++) out[c] = static_cast<real>(to_float(p[(first + c) * stride]));
  };
  switch (dtype) {
    case DType::bf16: return copy(static_cast<const bf16*>(row));
    case DType::f16: return copy(static_cast<const f16*>(row));
    case DType::f64: return copy(static_cast<const double*>(row));
    default: return copy(static_cast<const float*>(row));
  }
}

}  // namespace tilewise
