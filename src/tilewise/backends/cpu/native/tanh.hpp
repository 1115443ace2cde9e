// tanh for the soft cap, and tanh with its derivative. They are two because the derivative is wanted to its last bits
// also where tanh rounds to 1: it comes from e^-2|x|, which tanhv need not form.
// Their values of tanh differ by some 1e-7: as much as the rounding of the product moves a logit.
#pragma once
#include "simd.hpp"

namespace tilewise {

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

// t = tanh(x), slope = 1 - t^2 without its cancellation.
TW_INLINE void tanh_and_slope(f32v x, f32v& t, f32v& slope) {
  const f32v a = vmax(x, -x), e = exp2v(a * splat(-2.8853900817779268f)), q = splat(1.0f) / (splat(1.0f) + e);
  slope = splat(4.0f) * e * q * q;
  const f32v large = (splat(1.0f) - e) * q, z = x * x;
  f32v y = splat(-5.70498872745e-3f);
  y = y * z + splat(2.06390887954e-2f);
  y = y * z + splat(-5.37397155531e-2f);
  y = y * z + splat(1.33314422036e-1f);
  y = y * z + splat(-3.33332819422e-1f);
  y = y * z * x + x;  // near 0, where 1 - e cancels
  t = a < 0.625f ? y : (x < 0.0f ? -large : large);
}
TW_INLINE void tanh_and_slope(f64v x, f64v& t, f64v& slope) {
  TW_UNROLL(8) for (int i = 0; i < kLanes / 2; i++) {
    const double c = std::cosh(x[i]);
    t[i] = std::tanh(x[i]);
    slope[i] = 1.0 / (c * c);
  }
}

}  // namespace tilewise
