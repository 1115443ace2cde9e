// One piece of decode work: the rows of a few queries, all heads of a range, over a run of keys; block by block, head
// by head. While a block is worked on, the next one is fetched in memory order.
#pragma once
#include <algorithm>

#include "decode_values.hpp"
#include "states.hpp"
#include "workspace.hpp"

namespace tilewise {

constexpr int64_t kBlockBytes = 64 << 10;  // K and V of all heads of a block: it and the next fit the L2 cache

template <class W, class T> class Decoder {
 public:
  using Word = typename W::Word;

  Decoder(const PagedArguments& a, const RowBlock& block, Range keys, Workspace& space)
      : a_(a), at_(block), keys_(keys), rows_(static_cast<int>(block.rows_of_head())),
        tiles_((rows_ + kDecodeRows - 1) / kDecodeRows), each_((rows_ + tiles_ - 1) / tiles_),
        query_words_((a.qk_dim + W::group - 1) / W::group * W::key_vectors * kLanes),
        columns_(padded_columns<W>(a.v_dim)) {
    const std::size_t rows = static_cast<std::size_t>(at_.rows());
    query_ = space.take<Word>(rows * static_cast<std::size_t>(query_words_));
    running_ = space.take<Running>(static_cast<std::size_t>(at_.heads * tiles_));
    hidden_ = space.take<T>(static_cast<std::size_t>(columns_));
    std::memset(static_cast<void*>(hidden_), 0, static_cast<std::size_t>(columns_) * sizeof(T));
  }
  static std::size_t bytes(const PagedArguments& a, const RowBlock& r) {
    const int64_t words = (a.qk_dim + W::group - 1) / W::group * W::key_vectors * kLanes;
    const int64_t tiles = (r.rows_of_head() + kDecodeRows - 1) / kDecodeRows;
    return static_cast<std::size_t>(r.rows() * words) * sizeof(Word) +
           static_cast<std::size_t>(r.heads * tiles) * sizeof(Running) +
           static_cast<std::size_t>(padded_columns<W>(a.v_dim)) * sizeof(T) + 3 * 64;
  }
  // Keys of a block: a power of two that depends on the shapes alone.
  static int block_keys(const PagedArguments& a) {
    const int64_t key = a.kv_heads * (a.qk_dim + a.v_dim) * static_cast<int64_t>(sizeof(T));
    int n = kDecodeKeys;
    while (n > 2 * kLanes && n * key > kBlockBytes) n /= 2;
    return n;
  }

  void run(State out) {
    load_queries();
    const int64_t rows = at_.rows();
    std::memset(out.acc, 0, static_cast<std::size_t>(rows * columns_) * sizeof(float));
    for (int64_t i = 0; i < at_.heads * tiles_; i++) running_[i] = {splat(-INFINITY), f32v{}};
    find_visible();
    const int64_t n = block_keys(a_);
    int64_t key = keys_.begin;
    int here = 0;
    enter(block_[here], key, std::min(n, keys_.end - key));
    if (keys_.end - key > 2 * kLanes) ahead(block_[here]).touch(1 << 20);
    for (; key < keys_.end; key += n, here ^= 1) {
      Ahead next;
      if (key + n < keys_.end) {
        enter(block_[here ^ 1], key + n, std::min(n, keys_.end - key - n));
        next = ahead(block_[here ^ 1]);
      }
      const double macs = static_cast<double>(rows * block_[here].keys) * static_cast<double>(a_.qk_dim + a_.v_dim);
      lines_per_mac_ = static_cast<double>(next.lines()) / macs;
      for (int64_t h = 0; h < at_.heads; h++) work(block_[here], h, out, next);
    }
    write_running(out);
  }

 private:
  struct Block {
    int64_t first = 0;
    int keys = 0;
    Place at[kDecodeKeys];
    int64_t key[kDecodeKeys], value[kDecodeKeys];  // element offsets of head 0
  };

  void load_queries() {
    Workspace space(static_cast<std::size_t>(query_words_) * 2 * sizeof(float) +
                    static_cast<std::size_t>(W::group) * sizeof(float));
    const int64_t padded = (a_.qk_dim + W::group - 1) / W::group * W::group;
    float* row = space.take<float>(static_cast<std::size_t>(padded));
    std::memset(row, 0, static_cast<std::size_t>(padded) * sizeof(float));
    const int64_t rows = at_.rows();
    for (int64_t r = 0; r < rows; r++) {
      load_row(a_.dtype, a_.q, at_.token(r) * a_.qs.t + at_.q_head(r) * a_.qs.h, a_.qk_dim, row);
      Word* out = query_ + r * query_words_;
      for (int64_t d = 0; d < padded; d += W::group, out += W::key_vectors * kLanes) place_query<W>(row + d, out);
    }
  }

  // Keys that all queries see, as far as windows and draft masks are concerned.
  void find_visible() {
    all_ = keys_;
    for (int64_t i = 0; i < at_.queries; i++) {
      const Range r = at_.seq.visible(at_.first_query + i, a_.meaning);
      all_ = {std::max(all_.begin, r.begin), std::min(all_.end, r.end)};
    }
    if (a_.draft_mask) all_.end = std::min(all_.end, at_.seq.position(0));
  }
  bool sees(int64_t query, int64_t key) const {
    const Range r = at_.seq.visible(query, a_.meaning);
    if (key < r.begin || key >= r.end) return false;
    const int64_t fresh = key - at_.seq.position(0);
    if (!a_.draft_mask || fresh < 0) return true;
    return fresh < a_.max_new && a_.draft_mask[(at_.seq.first_token + query) * a_.draft_stride_t + fresh];
  }

  void enter(Block& b, int64_t first, int64_t keys) const {
    b.first = first;
    b.keys = static_cast<int>(keys);
    const int64_t size = a_.pages.page_size;
    int64_t slot = first % size;
    const int32_t* page = at_.seq.pages + first / size;
    for (int i = 0; i < b.keys; i++) {
      b.at[i] = {*page, slot};
      b.key[i] = key_offset(a_.pages, b.at[i]);
      b.value[i] = value_offset(a_.pages, b.at[i]);
      if (++slot == size) slot = 0, page++;
    }
  }
  Ahead ahead(const Block& b) const {
    const Pages& p = a_.pages;
    const auto rows = [&](const void* base, const int64_t* offset, int64_t head_stride, int64_t width) {
      constexpr int64_t size = sizeof(T);
      AheadRows r{static_cast<const char*>(base) + at_.head * head_stride * size, offset, size, at_.heads,
                  head_stride * size, width * size};
      if (head_stride >= 0 && head_stride <= 2 * width) {  // neighbours (in combined pages the other half lies between)
        r.bytes += (r.runs - 1) * r.run_stride;
        r.runs = 1;
      }
      return r;
    };
    AheadRows k = rows(p.k, b.key, p.k_stride_head, a_.qk_dim), v = rows(p.v, b.value, p.v_stride_head, a_.v_dim);
    const int64_t apart = static_cast<const char*>(p.v) - static_cast<const char*>(p.k);
    if (k.runs == 1 && v.runs == 1 && apart > 0 && apart < k.bytes && p.k_stride_slot == p.v_stride_slot &&
        p.k_stride_page == p.v_stride_page) {  // one run holds both
      k.bytes += v.bytes > 0 ? apart : 0;
      v.runs = 0;
    }
    return Ahead(k, v, b.keys);
  }
  int lines(double macs) const { return static_cast<int>(macs * lines_per_mac_ + 0.999); }

  void work(const Block& b, int64_t h, State out, Ahead& next) {
    const int64_t head = at_.head + h;
    const T *key[kDecodeKeys + kLanes], *value[kDecodeKeys];
    float key_scale[kDecodeKeys], value_scale[kDecodeKeys];
    const T* k = static_cast<const T*>(a_.pages.k) + head * a_.pages.k_stride_head;
    const T* v = static_cast<const T*>(a_.pages.v) + head * a_.pages.v_stride_head;
    for (int i = 0; i < b.keys; i++) key[i] = k + b.key[i], value[i] = v + b.value[i];
    for (int i = b.keys; i < padded_keys(b.keys) + kLanes; i++) key[i] = key[b.keys - 1];
    const bool k_slots = per_slot(a_.pages.k_scale), v_slots = per_slot(a_.pages.v_scale);
    if (k_slots) slot_scales(a_.pages.k_scale, b, head, key_scale);
    if (v_slots) slot_scales(a_.pages.v_scale, b, head, value_scale);
    const float shared = k_slots ? 1.0f : scale_at(a_.pages.k_scale, {}, head);
    const float multiplier = static_cast<float>(a_.meaning.scale * kLog2e) * shared * W::factor;
    const bool whole = b.first >= all_.begin && b.first + b.keys <= all_.end;
    for (int t = 0; t < tiles_; t++) {
      const int first = t * each_, rows = std::min(each_, rows_ - first);
      with_rows<kDecodeRows>(rows, [&](auto n) {
        constexpr int R = decltype(n)::value, padded = lane_rows(R);
        alignas(64) float s[kDecodeKeys * padded];
        alignas(64) Word p[kDecodeKeys * padded];
        float alpha[kLanes];
        const Word* q = query_ + (h * rows_ + first) * query_words_;
        const double macs = static_cast<double>(R) * static_cast<double>(a_.qk_dim);
        score_keys<W, R>(key, b.keys, a_.qk_dim, q, query_words_, multiplier, s, next, lines(macs * (kLanes / padded)));
        if (k_slots || a_.meaning.softcap != 0)
          adjust_scores<padded>(s, b.keys, k_slots ? key_scale : nullptr,
                                static_cast<float>(a_.meaning.softcap * kLog2e));
        std::fill(s + b.keys * padded, s + padded_keys(b.keys) * padded, -INFINITY);
        if (!whole) hide(b, first, R, padded, s);
        soften<W, padded>(s, b.keys, v_slots ? value_scale : nullptr, running_[h * tiles_ + t], alpha, p);
        float* acc = out.acc + (h * rows_ + first) * columns_;
        const int each = lines(4.0 * R * W::group * strip_groups<W>(R));
        if (whole) gather_values<W>(value, b.keys, a_.v_dim, p, padded, R, acc, columns_, alpha, next, each);
        else gather_seen(b, value, first, R, padded, p, acc, alpha);
      });
    }
  }
  void slot_scales(const PageScale& scale, const Block& b, int64_t head, float* out) const {
    for (int i = 0; i < b.keys; i++) out[i] = scale_at(scale, b.at[i], head);
    std::fill(out + b.keys, out + padded_keys(b.keys), 0.0f);
  }
  int64_t query_of(int row) const { return at_.first_query + row / at_.group; }
  void hide(const Block& b, int first, int rows, int padded, float* s) const {
    for (int r = 0; r < rows; r++)
      for (int i = 0; i < b.keys; i++)
        if (!sees(query_of(first + r), b.first + i)) s[i * padded + r] = -INFINITY;
  }
  // Query by query, hidden values read as zeros: 0 * NaN would not be 0.
  void gather_seen(const Block& b, const T* const* value, int first, int rows, int padded, const Word* p, float* acc,
                   const float* alpha) {
    Ahead nothing;
    for (int r = 0; r < rows;) {
      const int64_t query = query_of(first + r);
      int end = r + 1;
      while (end < rows && query_of(first + end) == query) end++;
      const T* seen[kDecodeKeys];
      for (int i = 0; i < b.keys; i++) seen[i] = sees(query, b.first + i) ? value[i] : hidden_;
      gather_values<W>(seen, b.keys, a_.v_dim, p + r, padded, end - r, acc + r * columns_, columns_, alpha + r, nothing,
                       0);
      r = end;
    }
  }

  void write_running(State out) const {
    for (int64_t h = 0; h < at_.heads; h++)
      for (int t = 0; t < tiles_; t++) {
        const int first = t * each_, rows = std::min(each_, rows_ - first), padded = lane_rows(rows);
        float m[kLanes], l[kLanes];
        store(m, running_[h * tiles_ + t].m);
        store(l, running_[h * tiles_ + t].l);
        for (int r = 0; r < rows; r++) {
          float sum = 0;
          for (int lane = r; lane < kLanes; lane += padded) sum += l[lane];
          out.m[h * rows_ + first + r] = m[r];
          out.l[h * rows_ + first + r] = sum;
        }
      }
  }

  const PagedArguments& a_;
  const RowBlock& at_;
  const Range keys_;
  const int rows_, tiles_, each_;
  const int64_t query_words_, columns_;
  Word* query_;
  Running* running_;
  T* hidden_;
  Range all_;
  double lines_per_mac_ = 0;
  Block block_[2];
};

}  // namespace tilewise
