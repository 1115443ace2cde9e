// From products to logits, where more than a positive scale is asked for: soft cap, bias, quantised keys.
#pragma once
#include "arguments.hpp"
#include "tanh.hpp"

namespace tilewise {

constexpr double kLog2e = 1.4426950408889634, kLn2 = 0.6931471805599453;

template <class real> struct LogitRule {
  real factor = 1;            // logit = factor * product, or cap * tanh(inner * product)
  real cap = 0, inner = 0;
};

// s over vectors [v0, v1); key_scale and bias may be null, else are read over the same columns.
template <bool capped, bool scaled, bool biased, class real>
TW_INLINE void to_logits(const LogitRule<real>& rule, int v0, int v1, real* s, const real* key_scale,
                         const real* bias) {
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
TW_NOINLINE void to_logits(const LogitRule<real>& rule, int v0, int v1, real* s, const real* key_scale,
                           const real* bias) {
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
template <class real>
void load_bias(const void* row, DType dtype, int64_t stride, int64_t first, int begin, int end, real* out) {
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
