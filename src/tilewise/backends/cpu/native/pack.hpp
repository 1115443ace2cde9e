// Panels: what `product` wants as B, made from rows of any storage type, given as an array of row pointers, so that a
// stride, a page table or a gather look the same here. Both zero-fill their tails and never read past `width` elements
// of a row.
//
//   pack_transposed<U>(rows, count, width, out)   B(k, j) = row j, word k: scores (S = Q K^T)
//       out: [panels<U>(count)][words<U>(width)][kPanel<U>] words           count <= any, tail columns are zero
//   pack_rows<U>(rows, count, width, out)         B(k, e) = word k of column e, pairs run over rows: values (P V)
//       out: [panels<U>(width)][words<U>(count)][kPanel<U>] words           returns whether every element is finite
//   copy_words<U>(row, width, out)                one row as words (operand A): words<U>(width), zero-filled
//
// A storage type T needs `f32v load(const T*)`, `float to_float(T)`: structs in this namespace (argument lookup).
#pragma once
#include "tiles.hpp"

namespace tilewise {

template <class U> constexpr int64_t words(int64_t n) { return (n + U::pair - 1) / U::pair; }
template <class U> constexpr int64_t panels(int64_t n) { return (n + kPanel<U> - 1) / kPanel<U>; }
template <class U>
constexpr int64_t panel_words(int64_t columns, int64_t depth) {  // size of either panel form, in words
  return panels<U>(columns) * words<U>(depth) * kPanel<U>;
}
template <class T> inline void row_pointers(const T* base, int64_t stride, int64_t count, const T** rows) {
  for (int64_t i = 0; i < count; i++) rows[i] = base + i * stride;
}

// ---- one word, one vector of words ------------------------------------------------------------------------------
template <class U, class T> TW_INLINE typename U::word word_of(T x, T y) {  // y: the pair's second element
  if constexpr (U::pair == 1) return static_cast<typename U::word>(to_float(x));
  else {
    const auto bits = [](T e) -> uint32_t {
      if constexpr (std::is_same_v<T, bf16>) return e.bits;
      else return to_bf16(static_cast<float>(to_float(e))).bits;
    };
    return bits(x) | bits(y) << 16;
  }
}
template <class U, class T> TW_INLINE typename U::word word_of(const T* row, int64_t width, int64_t k) {
  const int64_t i = k * U::pair;
  return word_of<U>(row[i], U::pair == 2 && i + 1 < width ? row[i + 1] : T{});
}
TW_INLINE u32v interleave(u16v low, u16v high) {
  return __builtin_convertvector(low, u32v) | __builtin_convertvector(high, u32v) << 16;
}
template <class T> TW_INLINE u16v load_bf16(const T* p) {
  if constexpr (std::is_same_v<T, bf16>) return load_as<u16v>(p);
  else return round_bf16(load(p));
}
TW_INLINE u32v pairs(f32v low, f32v high) {  // elements 0, 1, 2 .. of [low, high] as words
  uint16_t h[2 * kLanes];
  store(reinterpret_cast<bf16*>(h), low);
  store(reinterpret_cast<bf16*>(h) + kLanes, high);
  return load_as<u32v>(h);
}
// Words k .. k + lanes of a row; the row must hold them all.
template <class U, class T> TW_INLINE auto load_words(const T* row, int64_t k) {
  if constexpr (std::is_same_v<T, typename U::element>) return load_as<decltype(U::load(nullptr))>(row + k * U::pair);
  else if constexpr (U::pair == 1) return load(row + k);
  else return pairs(load(row + 2 * k), load(row + 2 * k + kLanes));
}

// ---- transposing in registers -----------------------------------------------------------------------------------
// A square of 32-bit lanes: 4 x 4 blocks inside 128 bits, then whole 128-bit blocks.
// Lanes with bit `step` clear come from a, those with it set from b; lower or upper: which blocks of them.
template <int step> constexpr int lower_blocks(int l) { return l & step ? l - step + kLanes : l; }
template <int step> constexpr int upper_blocks(int l) { return l & step ? l + kLanes : l + step; }
// Inside each 128 bits: lanes, or pairs of lanes, of a and b in turn, from the lower or the upper half.
constexpr int lower_lanes(int l) { return l / 4 * 4 + l % 4 / 2 + l % 2 * kLanes; }
constexpr int upper_lanes(int l) { return lower_lanes(l) + 2; }
constexpr int lower_pairs(int l) { return l / 4 * 4 + l % 2 + l % 4 / 2 * kLanes; }
constexpr int upper_pairs(int l) { return lower_pairs(l) + 2; }

template <int step> TW_INLINE void swap_blocks(u32v* v) {
  if constexpr (step < kLanes) {
    TW_UNROLL(16) for (int i = 0; i < kLanes; i++)
      if (!(i & step)) {
        const u32v a = v[i], b = v[i + step];
        v[i] = shuffle<lower_blocks<step>>(a, b);
        v[i + step] = shuffle<upper_blocks<step>>(a, b);
      }
    swap_blocks<step * 2>(v);
  }
}
TW_INLINE void transpose(u32v* v) {
  TW_UNROLL(4) for (int g = 0; g < kLanes; g += 4) {
    const u32v a = shuffle<lower_lanes>(v[g], v[g + 1]), b = shuffle<upper_lanes>(v[g], v[g + 1]);
    const u32v c = shuffle<lower_lanes>(v[g + 2], v[g + 3]), d = shuffle<upper_lanes>(v[g + 2], v[g + 3]);
    v[g] = shuffle<lower_pairs>(a, c);
    v[g + 1] = shuffle<upper_pairs>(a, c);
    v[g + 2] = shuffle<lower_pairs>(b, d);
    v[g + 3] = shuffle<upper_pairs>(b, d);
  }
  swap_blocks<4>(v);
}

// ---- panels -----------------------------------------------------------------------------------------------------
template <class U, class T>
TW_NOINLINE void pack_transposed(const T* const* rows, int64_t count, int64_t width, typename U::word* out) {
  constexpr int64_t lanes = kUnitLanes<U>;
  const int64_t depth = words<U>(width), whole = sizeof(typename U::word) == 4 ? width / U::pair / lanes * lanes : 0;
  for (int64_t j0 = 0; j0 < count; j0 += kPanel<U>, out += depth * kPanel<U>)
    for (int64_t j = 0; j < kPanel<U>; j += lanes) {
      const int64_t here = count - j0 - j < lanes ? count - j0 - j : lanes;  // rows left for these lanes; may be <= 0
      const T* const* row = rows + j0 + j;
      typename U::word* o = out + j;
      int64_t k = 0;
      if constexpr (sizeof(typename U::word) == 4)
        for (; k < whole; k += lanes) {
          u32v v[kLanes];
          if (here == lanes) TW_UNROLL(16) for (int i = 0; i < kLanes; i++) v[i] = (u32v)load_words<U>(row[i], k);
          else for (int i = 0; i < kLanes; i++) v[i] = i < here ? (u32v)load_words<U>(row[i], k) : u32v{};
          transpose(v);
          TW_UNROLL(16) for (int i = 0; i < kLanes; i++) std::memcpy(o + (k + i) * kPanel<U>, &v[i], sizeof v[i]);
        }
      for (; k < depth; k++)
        for (int64_t i = 0; i < lanes; i++)
          o[k * kPanel<U> + i] = i < here ? word_of<U>(row[i], width, k) : typename U::word{};
    }
}

// `spoiled` gathers x * 0 (a NaN once x is not finite), or for bf16 words the lanes whose exponent is all ones.
template <class U, class V> TW_INLINE void note_finite(V words, V& spoiled) {
  if constexpr (U::pair == 1) spoiled = words * V{} + spoiled;
  else {
    const auto odd = ((words & 0x7f80u) == 0x7f80u) | ((words & 0x7f800000u) == 0x7f800000u);
    spoiled |= (V)odd;
  }
}
template <class V> TW_INLINE bool all_finite(V spoiled) {
  bool ok = true;
  for (unsigned i = 0; i < sizeof(V) / sizeof(spoiled[0]); i++) ok &= spoiled[i] == 0;
  return ok;
}

template <class U, class T>
TW_NOINLINE bool pack_rows(const T* const* rows, int64_t count, int64_t width, typename U::word* out) {
  using V = decltype(U::load(nullptr));
  constexpr int64_t lanes = kUnitLanes<U>;
  const int64_t depth = words<U>(count), whole = width / lanes * lanes;
  V spoiled{};
  for (int64_t k = 0; k < depth; k++) {
    const T* a = rows[k * U::pair];
    const T* b = U::pair == 2 && k * 2 + 1 < count ? rows[k * 2 + 1] : nullptr;
    for (int64_t e0 = 0; e0 < width; e0 += kPanel<U>) {
      typename U::word* o = out + e0 * depth + k * kPanel<U>;
      for (int64_t j = 0; j < kPanel<U>; j += lanes) {
        const int64_t e = e0 + j;
        V v{};
        if (e < whole) {
          if constexpr (U::pair == 1) v = load_words<U>(a, e);
          else v = interleave(load_bf16(a + e), b ? load_bf16(b + e) : u16v{});
        } else {
          for (int64_t i = 0; i < lanes && e + i < width; i++) v[i] = word_of<U>(a[e + i], b ? b[e + i] : T{});
        }
        note_finite<U>(v, spoiled);
        std::memcpy(o + j, &v, sizeof v);
      }
    }
  }
  return all_finite(spoiled);
}

template <class U, class T> TW_INLINE void copy_words(const T* row, int64_t width, typename U::word* out) {
  constexpr int64_t lanes = kUnitLanes<U>;
  int64_t k = 0;
  for (; k + lanes <= width / U::pair; k += lanes) {
    const auto v = load_words<U>(row, k);
    std::memcpy(out + k, &v, sizeof v);
  }
  for (; k < words<U>(width); k++) out[k] = word_of<U>(row, width, k);
}

}  // namespace tilewise
