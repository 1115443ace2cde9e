// Decode: a few query rows against a block of keys, read in place from the page rows. Three loops, none of which sums
// across lanes:
//   score_keys     s[key][row] = q . k     a key is loaded once for all rows of its group; one transposing sum a tile
//   (adjust_scores, for soft caps and scales of single slots; then the caller hides keys by -inf)
//   soften         p = exp2(s - m), l      lanes are (key, row), so a row's maximum is a vector maximum
//   gather_values  acc[row] = alpha * acc[row] + sum p * v
// W says how stored rows become words (widen.hpp). Rows are padded to a power of two (kLaneRows) inside s and p.
#pragma once
#include "ahead.hpp"
#include "logits.hpp"
#include "widen.hpp"

namespace tilewise {

constexpr int kDecodeRows = kLanes < 8 ? 4 : 8;  // query rows that pass together
constexpr int kDecodeKeys = 64;                  // keys in a block, at most
constexpr int lane_rows(int rows) { return rows <= 1 ? 1 : rows <= 2 ? 2 : rows <= 4 ? 4 : 8; }
constexpr int padded_keys(int keys) { return (keys + 2 * kLanes - 1) / (2 * kLanes) * (2 * kLanes); }

template <class W, class T> constexpr int groups_of_line = W::group * sizeof(T) < 64 ? 64 / (W::group * sizeof(T)) : 1;

// The last, short group of a row, without reading past it.
template <class W, class T> TW_INLINE void load_key_tail(const T* p, int n, typename W::Vector* out) {
  T copy[W::group] = {};
  std::memcpy(copy, p, static_cast<std::size_t>(n) * sizeof(T));
  W::load_key(copy, out);
}

// ---- scores ---------------------------------------------------------------------------------------------------------
template <int step> constexpr int own_half(int l) { return l & step ? l + kLanes : l; }
template <int step> constexpr int other_half(int l) { return l & step ? l - step + kLanes : l + step; }
template <int step> TW_INLINE f32v add_halves(f32v a, f32v b) {  // lanes without bit `step` sum a, lanes with it sum b
  return shuffle<own_half<step>>(a, b) + shuffle<other_half<step>>(a, b);
}
// Lane i of the result is the sum of the lanes of v[i].
template <int step = kLanes / 2> TW_INLINE f32v transposing_sum(f32v* v) {
  TW_UNROLL(8) for (int i = 0; i < step; i++) v[i] = add_halves<step>(v[i], v[i + step]);
  if constexpr (step > 1) return transposing_sum<step / 2>(v);
  else return v[0];
}

template <class W, int R, int K, bool tail, class T>
TW_INLINE void score_step(const T* const* key, int64_t d, int left, const typename W::Word* q, int64_t ldq, f32v* acc) {
  using V = typename W::Vector;
  constexpr int n = W::key_vectors, ld = kLanes / K;
  const auto load_key = [&](int i, V* out) {
    if constexpr (tail) load_key_tail<W>(key[i] + d, left, out);
    else W::load_key(key[i] + d, out);
  };
  if constexpr (R <= 2) {  // many keys: the query stays in registers
    V x[R][n], k[n];
    TW_UNROLL(2) for (int r = 0; r < R; r++)
      TW_UNROLL(2) for (int j = 0; j < n; j++) x[r][j] = W::Unit::load(q + r * ldq + j * kLanes);
    TW_UNROLL(16) for (int i = 0; i < K; i++) {
      load_key(i, k);
      TW_UNROLL(2) for (int r = 0; r < R; r++)
        TW_UNROLL(2) for (int j = 0; j < n; j++) acc[i * ld + r] = W::Unit::fma(x[r][j], k[j], acc[i * ld + r]);
    }
  } else {
    V k[K][n];
    TW_UNROLL(4) for (int i = 0; i < K; i++) load_key(i, k[i]);
    TW_UNROLL(8) for (int r = 0; r < R; r++)
      TW_UNROLL(2) for (int j = 0; j < n; j++) {
        const V x = W::Unit::load(q + r * ldq + j * kLanes);
        TW_UNROLL(4) for (int i = 0; i < K; i++) acc[i * ld + r] = W::Unit::fma(x, k[i][j], acc[i * ld + r]);
      }
  }
}

// key[] repeats its last row up to padded_keys(keys) + kLanes. Scores come out as powers of two:
// times `multiplier`, which is scale * log2(e) and whatever scale all keys share.
template <class W, int R, class T>
TW_NOINLINE void score_keys(const T* const* key, int keys, int64_t dim, const typename W::Word* q, int64_t ldq,
                            float multiplier, float* s, Ahead& ahead, int lines) {
  constexpr int K = kLanes / lane_rows(R);
  for (int key0 = 0; key0 < keys; key0 += K, key += K) {
    f32v acc[kLanes] = {};
    int64_t d = 0;
    const typename W::Word* x = q;
    while (d + groups_of_line<W, T> * W::group <= dim) {  // the next keys come out of the second cache meanwhile
      TW_UNROLL(16) for (int i = 0; i < K; i++) __builtin_prefetch(key[K + i] + d, 0, 3);
      TW_UNROLL(4) for (int g = 0; g < groups_of_line<W, T>; g++, d += W::group, x += W::key_vectors * kLanes)
        score_step<W, R, K, false>(key, d, 0, x, ldq, acc);
    }
    for (; d + W::group <= dim; d += W::group, x += W::key_vectors * kLanes)
      score_step<W, R, K, false>(key, d, 0, x, ldq, acc);
    if (d < dim) score_step<W, R, K, true>(key, d, static_cast<int>(dim - d), x, ldq, acc);
    store(s + key0 * lane_rows(R), transposing_sum(acc) * splat(multiplier));
    ahead.touch(lines);
  }
}

// ---- softmax --------------------------------------------------------------------------------------------------------
struct Running { f32v m, l; };             // lanes repeat the rows; l is a partial sum in each lane

template <int rows> constexpr int key_of_lane(int l) { return l / rows; }
template <int rows> TW_INLINE f32v by_key(const float* x) {  // lane l: x[l / rows]
  if constexpr (rows == 1) return load(x);
  else if constexpr (rows == kLanes) return splat(*x);
  else {
    f32v v{};
    std::memcpy(&v, x, kLanes / rows * sizeof(float));
    return shuffle<key_of_lane<rows>>(v, v);
  }
}
template <int rows> constexpr int neighbour(int l) { return l ^ rows; }
template <int rows> TW_INLINE f32v max_over_keys(f32v m) {
  if constexpr (rows < kLanes) return max_over_keys<rows * 2>(vmax(m, shuffle<neighbour<rows>>(m, m)));
  else return m;
}
template <int rows> constexpr int even_key(int l) { return l / rows * 2 * rows + l % rows; }
template <int rows> constexpr int odd_key(int l) { return even_key<rows>(l) + rows; }
// Lane (i, row): keys 2i, 2i + 1 of [a, b], rounded to bf16.
template <int rows> TW_INLINE u32v pair_keys(f32v a, f32v b) {
  const auto rounded = [](f32v v) {
    bf16 h[kLanes];
    store(h, v);
    return __builtin_convertvector(load_as<u16v>(h), u32v);
  };
  return rounded(shuffle<even_key<rows>>(a, b)) | rounded(shuffle<odd_key<rows>>(a, b)) << 16;
}

// cap: the soft cap * log2(e), 0 for none; key_scale: [padded_keys], null for none.
template <int rows> TW_NOINLINE void adjust_scores(float* s, int keys, const float* key_scale, float cap) {
  for (int i = 0; i < keys * rows; i += kLanes) {
    f32v x = load(s + i);
    if (key_scale) x *= by_key<rows>(key_scale + i / rows);
    if (cap != 0) x = tanhv(x * splat(1.0f / cap)) * splat(cap);
    store(s + i, x);
  }
}

// s: [padded_keys(keys)][rows], -inf where hidden and past `keys`. p: words, one a row for each step of keys.
template <class W, int rows>
TW_NOINLINE void soften(const float* s, int keys, const float* value_scale, Running& state, float* alpha,
                        typename W::Word* p) {
  constexpr int stride = W::step * kLanes;
  const int end = (keys * rows + stride - 1) / stride * stride;
  const f32v inf = splat(-INFINITY);
  f32v highest = inf;
  for (int i = 0; i < end; i += kLanes) highest = vmax(highest, load(s + i));
  const f32v m = vmax(state.m, max_over_keys<rows>(highest));
  const f32v base = m == inf ? f32v{} : m;  // nothing seen yet: exp2(-inf - 0) is 0, where -inf - -inf is NaN
  const f32v old = exp2v(state.m - base);
  f32v l{};
  for (int i = 0; i < end; i += stride) {
    f32v x[W::step];
    TW_UNROLL(2) for (int j = 0; j < W::step; j++) x[j] = exp2v(load(s + i + j * kLanes) - base);
    if constexpr (W::step == 1) {
      l += x[0];
      if (value_scale) x[0] *= by_key<rows>(value_scale + i / rows);
      store(p + i, x[0]);
    } else {
      l += x[0] + x[1];  // before they are rounded: lse is exact
      if (value_scale) {
        TW_UNROLL(2) for (int j = 0; j < 2; j++) x[j] *= by_key<rows>(value_scale + (i + j * kLanes) / rows);
      }
      const u32v words = pair_keys<rows>(x[0], x[1]);
      std::memcpy(p + i / 2, &words, sizeof words);
    }
  }
  state = {m, state.l * old + l};
  float lanes[kLanes];
  store(lanes, old);
  for (int r = 0; r < rows; r++) alpha[r] = lanes[r];
}

}  // namespace tilewise
