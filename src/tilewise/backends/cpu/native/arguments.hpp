// What a launch is told: sizes, strides, the meaning (scale, window, cap), and where the arrays are.
// "real" below is float, or double where dtype is f64: sinks, lse, dlse, dsinks and dbias are arrays of it.
// Every stride is in elements; the innermost axis (D or E) always has stride 1. Positions are int64.
#pragma once
#include <cstdint>
#include <limits>

namespace tilewise {

enum class DType : int { f32 = 0, bf16 = 1, f16 = 2, f64 = 3, i8 = 4, e4m3 = 5, e5m2 = 6 };

constexpr int64_t kOpen = std::numeric_limits<int64_t>::max() / 4;  // a window side that is not bounded

struct Strides { int64_t b = 0, h = 0, t = 0; };             // batch, head, token
struct Strides4 { int64_t b = 0, h = 0, t = 0, s = 0; };     // batch, head, query, key; 0 where broadcast

struct Meaning {
  double scale = 1.0;
  int64_t left = kOpen, right = kOpen;  // key j is visible iff pos - left <= j <= pos + right
  double softcap = 0.0;                 // 0: none
};

// Dense and packed calls. Dense: batch x [q_len, kv_len], optionally with q_lens / kv_lens.
// Packed: `batch` sequences laid end to end; q_starts / kv_starts say where; b-strides are not used;
// q_len and kv_len are then the totals of tokens. Query i of a sequence stands at i + kv_len - q_len (valid lengths).
struct AttentionArguments {
  int64_t batch = 0, q_len = 0, kv_len = 0, q_heads = 0, kv_heads = 0, qk_dim = 0, v_dim = 0;
  DType dtype = DType::f32;
  Meaning meaning;
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  Strides qs, ks, vs;
  const void* bias = nullptr;  DType bias_dtype = DType::f32;  Strides4 bias_strides;
  const uint8_t* mask = nullptr;  Strides4 mask_strides;       // 1 = keep
  const void* sinks = nullptr;                                 // real [q_heads]
  const int32_t *q_segments = nullptr, *kv_segments = nullptr; // equal ids see each other; negative: padding
  int64_t q_segment_stride_b = 0, q_segment_stride_t = 1, kv_segment_stride_b = 0, kv_segment_stride_t = 1;
  const int32_t *q_lens = nullptr, *kv_lens = nullptr;         // [batch], dense only
  const int32_t *q_starts = nullptr, *kv_starts = nullptr;     // [batch + 1], packed only
  void* out = nullptr;  Strides os;
  void* lse = nullptr; Strides lse_strides;                    // real, natural log; may be null
};

struct BackwardArguments {
  AttentionArguments forward;            // forward.out and forward.lse are inputs here
  const void* dout = nullptr;  Strides dout_strides;
  const void* dlse = nullptr; Strides dlse_strides;            // real; may be null
  void *dq = nullptr, *dk = nullptr, *dv = nullptr;            // any may be null: not wanted
  Strides dqs, dks, dvs;
  void* dbias = nullptr; Strides4 dbias_strides;               // real, zeroed by the callee; 0 stride: summed
  int64_t dbias_sizes[4] = {1, 1, 1, 1};
  void* dsinks = nullptr;                                      // real [q_heads]
};

// K = stored * scale. value[page * stride_page + slot * stride_slot + head * stride_head]; null: 1.
struct PageScale { const float* value = nullptr; int64_t stride_page = 0, stride_slot = 0, stride_head = 0; };

struct Pages {
  const void *k = nullptr, *v = nullptr;                       // combined pages: v = k + one head
  int64_t k_stride_page = 0, k_stride_slot = 0, k_stride_head = 0;
  int64_t v_stride_page = 0, v_stride_slot = 0, v_stride_head = 0;
  int64_t num_pages = 0, page_size = 0;
  DType dtype = DType::f32;
  PageScale k_scale, v_scale;
};

struct PageBatch {
  int64_t max_seqs = 0, pages_per_seq = 0;
  const int32_t* kv_lens = nullptr;       // [max_seqs], the step's new tokens included
  const int32_t* page_indices = nullptr;  // [max_seqs, pages_per_seq], row stride pages_per_seq
  const int32_t* cu_q_lens = nullptr;     // [max_seqs + 1]
  const int32_t* num_seqs = nullptr;      // [1]; null: max_seqs
};

struct PagedArguments {
  int64_t max_tokens = 0, q_heads = 0, kv_heads = 0, qk_dim = 0, v_dim = 0;
  DType dtype = DType::f32;               // of q and out; pages may be of another
  Meaning meaning;
  const void* q = nullptr; Strides qs;
  Pages pages;
  PageBatch batch;
  const void* sinks = nullptr;            // real [q_heads]
  const uint8_t* draft_mask = nullptr; int64_t draft_stride_t = 0, max_new = 0;  // replaces causality among new tokens
  bool batch_invariant = false;
  void* out = nullptr; Strides os;        // rows past cu_q_lens[num_seqs] are set to 0 (lse -inf)
  void* lse = nullptr; Strides lse_strides;  // real
};

struct AppendArguments {                  // quantises when the pages are 8-bit: stored = round(x / scale), saturating
  int64_t max_tokens = 0, kv_heads = 0, qk_dim = 0, v_dim = 0;
  DType dtype = DType::f32;               // of the new k and v
  const void *k = nullptr, *v = nullptr; Strides ks, vs;
  Pages pages;                            // written through (const is shed)
  PageBatch batch;
};

// One state of the softmax algebra: out [rows, E], lse [rows].
struct MergeArguments {
  int64_t states = 0, rows = 0, heads = 0, v_dim = 0;
  DType dtype = DType::f32;
  const void* const* outs = nullptr; const Strides* out_strides = nullptr;
  const void* const* lses = nullptr; const Strides* lse_strides = nullptr;
  void* out = nullptr; Strides os; void* lse = nullptr; Strides ls;
};

// Values that only a look at the data shows. ok: nothing is wrong. Python says it in words.
enum class ValueError : int {
  ok = 0, kv_len_range = 1, page_range = 2, starts_fall = 3, starts_end = 4, num_seqs_range = 5, q_len_range = 6
};

}  // namespace tilewise
