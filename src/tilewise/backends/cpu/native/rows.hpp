// Rows of q and out, whatever their dtype, as float32; and the order in which W keeps the elements of a group.
#pragma once
#include <cstddef>

#include "arguments.hpp"
#include "widen.hpp"

namespace tilewise {

template <class F> inline void with_storage(DType t, F&& f) {  // f(a value of the element type); not float64
  switch (t) {
    case DType::f32: return f(float{});
    case DType::bf16: return f(bf16{});
    case DType::f16: return f(f16{});
    case DType::i8: return f(Int8{});
    case DType::e4m3: return f(E4m3{});
    case DType::e5m2: return f(E5m2{});
    default: return;
  }
}
inline int64_t size_of(DType t) {
  return t == DType::f64 ? 8 : t == DType::f32 ? 4 : t == DType::bf16 || t == DType::f16 ? 2 : 1;
}

template <class T> inline void load_row(const T* row, int64_t n, float* out) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(out + i, load(row + i));
  for (; i < n; i++) out[i] = static_cast<float>(to_float(row[i]));
}
template <class T> inline void store_row(const float* row, int64_t n, T* out) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(out + i, load(row + i));
  for (; i < n; i++) out[i] = from_float<T>(row[i]);
}
inline void load_row(DType t, const void* base, int64_t offset, int64_t n, float* out) {
  if (t == DType::f32) load_row(static_cast<const float*>(base) + offset, n, out);
  else if (t == DType::bf16) load_row(static_cast<const bf16*>(base) + offset, n, out);
  else load_row(static_cast<const f16*>(base) + offset, n, out);
}
inline void store_row(DType t, const float* row, int64_t n, void* base, int64_t offset) {
  if (t == DType::f32) store_row(row, n, static_cast<float*>(base) + offset);
  else if (t == DType::bf16) store_row(row, n, static_cast<bf16*>(base) + offset);
  else store_row(row, n, static_cast<f16*>(base) + offset);
}
inline void zero_row(DType t, int64_t n, void* base, int64_t offset) {
  std::memset(static_cast<char*>(base) + offset * size_of(t), 0, static_cast<std::size_t>(n * size_of(t)));
}

constexpr int even_lane(int l) { return 2 * l; }
constexpr int odd_lane(int l) { return 2 * l + 1; }
constexpr int lower_in_turn(int l) { return l / 2 + l % 2 * kLanes; }  // ... and back
constexpr int upper_in_turn(int l) { return lower_in_turn(l) + kLanes / 2; }

// A group of a query as words in W's order. row: W::group floats.
template <class W> TW_INLINE void place_query(const float* row, typename W::Word* out) {
  if constexpr (std::is_same_v<typename W::Word, float>) {
    const f32v a = load(row), b = load(row + kLanes);
    if constexpr (W::alternating) {
      store(out, shuffle<even_lane>(a, b));
      store(out + kLanes, shuffle<odd_lane>(a, b));
    } else {
      store(out, a);
      store(out + kLanes, b);
    }
  } else {  // blocks of eight stay together
    bf16 h[W::group];
    for (int i = 0; i < W::group; i += kLanes) store(h + i, load(row + i));
    for (int i = 0; i < W::group; i += 8) std::memcpy(reinterpret_cast<bf16*>(out) + W::place(i), h + i, 16);
  }
}
// ... and a group of an accumulator back in the order of columns.
template <class W> TW_INLINE void unplace_values(const float* acc, float* out) {
  if constexpr (std::is_same_v<typename W::Word, float>) {
    const f32v a = load(acc), b = load(acc + kLanes);
    if constexpr (W::alternating) {
      store(out, shuffle<lower_in_turn>(a, b));
      store(out + kLanes, shuffle<upper_in_turn>(a, b));
    } else {
      store(out, a);
      store(out + kLanes, b);
    }
  } else {  // blocks of four stay together
    for (int i = 0; i < W::group; i += 4) std::memcpy(out + i, acc + W::value_place(i), 16);
  }
}

}  // namespace tilewise
