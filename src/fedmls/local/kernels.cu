// What clients compute on their rows, on a GPU: cuda.py compiles this file for the number type of the rows (REAL, double
// or float; PAIR is two of them) and for the loss (LOSS), and calls it. All arithmetic is in double.
//
// A chain is one client of one run. Rows are dense (row-major, `stride` numbers apart) or CSR. Losses and random numbers
// are those of losses.py and random.py, so that the same mini-batches are drawn as on the processor.

typedef unsigned long long u64;
typedef unsigned int u32;

constexpr u32 ALL = 0xFFFFFFFFu;  // lanes of a warp

enum { HINGE, SQUARED_HINGE, ABSOLUTE, PINBALL, EPSILON_INSENSITIVE, HUBER, LOGISTIC };

__device__ __forceinline__ double loss_value(double c, double p, double b) {
  double r = p - b, m = b * p, far = fabs(r);
  switch (LOSS) {
    case HINGE: return m >= 1.0 ? 0.0 : 1.0 - m;
    case SQUARED_HINGE: return m >= 1.0 ? 0.0 : (1.0 - m) * (1.0 - m);
    case ABSOLUTE: return far;
    case PINBALL: return -r * c >= -r * (c - 1.0) ? -r * c : -r * (c - 1.0);
    case EPSILON_INSENSITIVE: return far <= c ? 0.0 : far - c;
    case HUBER: return far <= c ? 0.5 * r * r : c * (far - 0.5 * c);
    default: return (m < 0.0 ? -m : 0.0 * m) + log1p(exp(-fabs(m)));
  }
}

__device__ __forceinline__ double loss_slope(double c, double p, double b) {
  double r = p - b, m = b * p;
  switch (LOSS) {
    case HINGE: return m >= 1.0 ? 0.0 : -b;
    case SQUARED_HINGE: return m >= 1.0 ? 0.0 : -2.0 * b * (1.0 - m);
    case LOGISTIC: return -b / (1.0 + exp(m));
    case HUBER: return r < -c ? -c : r > c ? c : r;
    case PINBALL: return r > 0.0 ? 1.0 - c : r < 0.0 ? -c : 0.0;
    default: return r > c ? 1.0 : r < -c ? -1.0 : 0.0;
  }
}

constexpr u64 GOLDEN = 0x9E3779B97F4A7C15ull;

__device__ __forceinline__ u64 mix(u64 z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

// Of N numbers p in each of L lanes, leave each lane with the sums of its own: N / L of them, from p[lane N / L] on, or,
// where there are more lanes than numbers, of p[lane % N].
template <int N, int L>
__device__ __forceinline__ void own_sums(double* p, int lane) {
  if constexpr (L > N) {
    own_sums<N, L / 2>(p, lane);
    p[0] += __shfl_xor_sync(ALL, p[0], L / 2);
  } else if constexpr (L > 1) {
    constexpr int H = N / 2;
    bool upper = lane & (L / 2);
#pragma unroll
    for (int i = 0; i < H; i++) {
      double kept = upper ? p[i + H] : p[i], sent = upper ? p[i] : p[i + H];
      p[i] = kept + __shfl_xor_sync(ALL, sent, L / 2);
    }
    own_sums<H, L / 2>(p, lane);
  }
}

__device__ __forceinline__ int warp_max(int value) {
#pragma unroll
  for (int half = 16; half > 0; half /= 2) value = max(value, __shfl_xor_sync(ALL, value, half));
  return value;
}

// Draws `base` to `base + L - 1` of a partial Fisher-Yates shuffle of a table, one for each of L lanes, side by side.
// The swaps of the processor's loop are followed backwards: draw r takes what is at place k; if an earlier draw q of
// these took from k too, that left there what was at place q, which an even earlier one may have left there, and so on.
// Which places these are does not depend on the table, so that what follows `look` may be done for several steps at once.
// All lanes of the warp must come here together.
template <int L>
struct Draws {
  int base, size, lane, r, k;
  u32 same, inside;  // other draws from place k; draws from a place of these, few
  int before, root;  // the last draw before from place k, or -1; what was at place r when draw r came is at base + root

  __device__ __forceinline__ void look(int base, int size, int m, u64 counter, int lane) {
    this->base = base, this->size = size, this->lane = lane, r = base + lane, k = -1 - lane;
    if (r < size) {
      u64 bits = mix(counter + (u64)(r / 2 + 1) * GOLDEN);  // one hash serves two draws
      u64 part = (r & 1) ? (bits & 0xFFFFFFFFull) : (bits >> 32);
      k = r + (int)((part * (u64)(m - r)) >> 32);
    }
    int self = threadIdx.x % 32, start = self - lane;  // in the warp, which may have several groups of L lanes
    same = __match_any_sync(ALL, k < 0 ? ~self : k * 32 + start) & ~(1u << self);
    inside = __ballot_sync(ALL, k > r && k < base + L);
  }

  __device__ __forceinline__ void follow() {
    int self = threadIdx.x % 32, start = self - lane, hit = -1;
    u32 earlier = same & ((1u << self) - 1);
    before = earlier ? 31 - __clz(earlier) - start : -1;
    root = lane;
    for (u32 left = inside; left; left &= left - 1) {
      int q = __ffs(left) - 1, other = __shfl_sync(ALL, k, q);
      if (q < self && q >= start && other == r) hit = q - start;
    }
    if (inside)
      for (;;) {
        int h = __shfl_sync(ALL, hit, root, L);
        if (!__any_sync(ALL, h >= 0)) break;
        if (h >= 0) root = h;
      }
  }

  template <typename T>
  __device__ __forceinline__ int take(T* table) const {
    bool last = same >> (threadIdx.x % 32) == 0;  // no later draw is from place k
    int source = __shfl_sync(ALL, root, before < 0 ? 0 : before, L), mine = 0, replaced = 0;
    if (r < size) {
      mine = table[before < 0 ? k : base + source];
      replaced = table[base + root];
    }
    __syncwarp();
    if (r < size) {
      table[r] = (T)mine;
      if (last && k >= min(base + L, size)) table[k] = (T)replaced;
    }
    __syncwarp();
    return mine;
  }
};

// The loop of descent.py, many chains in one launch: for t = 1, 2, ...
//   u <- P_radius(u - a_t (scale g(u) + pull (u - center) + shift)),  mean <- (1 - theta_t) mean + theta_t u.
struct Steps {
  const double* sizes;    // rows of a_t, t = 0, 1, ..., or null: then a_t = factor (from + t) ** exponent
  long long width;        // numbers in a row; 1: one that is meant for all t
  double exponent;
  const double* average;  // theta_t, or null
  double pull, radius;
};

struct Penalty {
  double l2, l1;
  int penalised;
};

__device__ __forceinline__ double penalty_slope(const Penalty& penalty, int j, double u) {
  if (j >= penalty.penalised) return 0.0;
  return penalty.l2 * u + penalty.l1 * (u > 0.0 ? 1.0 : u < 0.0 ? -1.0 : 0.0);
}

struct Chains {
  const long long* first;          // of each chain: its first row,
  const int *rows, *batch, *place; // how many, how many in a mini-batch, its place in all that follows (null: as here),
  const int *steps, *own;          // its local steps, its row of step sizes,
  const double *factor, *from;     // or what these are made of,
  const double* scale;             // s,
  const u64* counter;              // and where its random numbers begin
};

__device__ __forceinline__ double step_size(const Steps& steps, const Chains& chains, int place, long long t) {
  if (steps.sizes) return steps.sizes[chains.own[place] * steps.width + (steps.width == 1 ? 0 : t)];
  return chains.factor[place] * (steps.exponent == 0.0 ? 1.0 : pow(chains.from[place] + t, steps.exponent));
}

struct Labels {
  const double *y, *c;  // label and weight of each row
  double parameter;     // of the loss
};

// Few coordinates: L lanes of a warp work on a chain, each on a row of the mini-batch. D numbers in a row (even), P >= D
// a power of two. Coordinates of u belong to lanes; all read it from shared memory. The chains of a warp go in step.
// A block has two warps: the second draws the mini-batches of the next AHEAD steps, and finds their sizes, while the
// first takes these.
// PLAIN: no slopes are kept, and there is neither penalty nor radius. ONCE: no mini-batch has more rows than lanes.
constexpr int AHEAD = 16;

// The chains are sorted by the lanes that work on them: 32, 16, 8, 4. Part l has the blocks from block[l] on and the
// chains from chain[l] on; rows of its longest table, and slots for a mini-batch.
struct Parts {
  int block[5], chain[5], longest[4], slots[4];
};

template <int L, int D, int P, bool PLAIN, bool ONCE>
__device__ __forceinline__ void descend_part(const REAL* __restrict__ X, int stride, int d, const Labels& labels,
                                             const Chains& chains, const Parts& parts, int part,
                                             const Penalty& penalty, const Steps& steps,
                                             const double* __restrict__ start, const double* __restrict__ center,
                                             const double* __restrict__ shift, double* __restrict__ last,
                                             double* __restrict__ averaged, double* slopes) {
  constexpr int OWN = P > L ? P / L : 1, GROUPS = 32 / L;
  extern __shared__ double2 room[];
  int lane = threadIdx.x % L, group = threadIdx.x % 32 / L, longest = parts.longest[part], slots = parts.slots[part];
  int chain = parts.chain[part] + (blockIdx.x - parts.block[part]) * GROUPS + group;
  bool here = chain < parts.chain[part + 1];
  if (!here) chain = parts.chain[part];
  double2* all_u = room + group * (P / 2);
  double* one_u = (double*)all_u;
  double* sizes = (double*)(room + GROUPS * (P / 2)) + group;           // [2][AHEAD][GROUPS]
  unsigned short* drawn_rows = (unsigned short*)(sizes - group + 2 * AHEAD * GROUPS);  // [2][AHEAD][GROUPS][slots]
  unsigned short* table = drawn_rows + 2 * AHEAD * GROUPS * slots + group * longest;
  int place = chains.place[chain];
  int m = chains.rows[chain], size = chains.batch[chain], count = here ? chains.steps[place] : 0;
  int draws = size < m ? size : 0, most = warp_max(count), widest = warp_max(size);
  bool any_drawn = warp_max(draws) > 0;
  if (threadIdx.x >= 32) {
    constexpr int TOGETHER = ONCE ? 2 : 1;  // steps
    u64 counter = chains.counter[place], drawn = (u64)((draws + 1) / 2) * GOLDEN;
    if (draws)
      for (int r = lane; r < m; r += L) table[r] = (unsigned short)r;
    __syncwarp();
    for (int begun = 0; begun < most + AHEAD; begun += AHEAD) {
      for (int t = begun + lane; t < min(begun + AHEAD, count); t += L)
        sizes[t % (2 * AHEAD) * GROUPS] = step_size(steps, chains, place, t);
      unsigned short* out = drawn_rows + ((begun / AHEAD % 2) * AHEAD * GROUPS + group) * slots;
      for (int t = begun; any_drawn && t < min(begun + AHEAD, most); t += TOGETHER) {
        for (int base = 0; base < (ONCE ? 1 : widest); base += L) {
          Draws<L> each[TOGETHER];
#pragma unroll
          for (int i = 0; i < TOGETHER; i++) each[i].look(base, draws, m, counter + i * drawn, lane);
#pragma unroll
          for (int i = 0; i < TOGETHER; i++) each[i].follow();
#pragma unroll
          for (int i = 0; i < TOGETHER; i++) out[i * GROUPS * slots + base + lane] = (unsigned short)each[i].take(table);
        }
        counter += TOGETHER * drawn;
        out += TOGETHER * GROUPS * slots;
      }
      __syncthreads();
    }
    return;
  }
  long long begin = chains.first[chain];
  const REAL* own_X = X + begin * stride;
  const double *own_y = labels.y + begin, *own_c = labels.c + begin, *average = steps.average;
  double weight = chains.scale[place] * m / size, share = (double)size / m, total = 0.0;
  int own = P > L ? lane * OWN : lane % P;
  double u[OWN], mean[OWN], drift[OWN];  // the step is along scale g(u) + pull u + drift
#pragma unroll
  for (int j = 0; j < OWN; j++) {
    long long at = (long long)place * d + min(own + j, d - 1);
    one_u[own + j] = u[j] = mean[j] = own + j < d ? start[at] : 0.0;
    drift[j] = own + j < d ? shift[at] - steps.pull * center[at] : 0.0;
  }
  bool penalised = !PLAIN && (penalty.l2 != 0.0 || penalty.l1 != 0.0);
  double next_theta = most > 0 && average ? average[0] : 0.0;
  __syncthreads();
  for (int t = 0; t < most; t++) {
    if (t > 0 && t % AHEAD == 0) __syncthreads();
    unsigned short* batch = drawn_rows + (t % (2 * AHEAD) * GROUPS + group) * slots;
    bool active = t < count;
    double a = sizes[t % (2 * AHEAD) * GROUPS], theta = next_theta, cut = 0.0;
    if (average) next_theta = average[min(t + 1, most - 1)];
    double g[P];
#pragma unroll
    for (int j = 0; j < P; j++) g[j] = 0.0;
    if (!PLAIN && slopes) {  // weights with cut / total = theta: in the end their average is that of u
      cut = t > 0 ? theta / (1.0 - theta) * total : 1.0;
      if (active) total += cut;
    }
    for (int base = 0; base < (ONCE ? 1 : widest); base += L) {
      int row = draws ? (int)batch[base + lane] : min(base + lane, m - 1);
      const REAL* x_row = own_X + row * stride;
      double x[D];
#pragma unroll
      for (int j = 0; j < D; j += 2) {
        PAIR two = *(const PAIR*)(x_row + j);
        x[j] = two.x;
        x[j + 1] = two.y;
      }
      double b = own_y[row], cw = own_c[row], p0 = 0.0, p1 = 0.0;
#pragma unroll
      for (int j = 0; j < D / 2; j++) {
        double2 w = all_u[j];
        p0 += x[2 * j] * w.x;
        p1 += x[2 * j + 1] * w.y;
      }
      double s = 0.0;
      if (active && base + lane < size) {
        s = loss_slope(labels.parameter, p0 + p1, b);
        if (!PLAIN && slopes) slopes[begin + row] += cut * m / size * s;
        s *= cw;
      }
#pragma unroll
      for (int j = 0; j < D; j++) g[j] += s * x[j];
    }
    own_sums<P, L>(g, lane);
    double square = 0.0;
#pragma unroll
    for (int j = 0; j < OWN; j++) {
      double all = penalised ? g[j] + penalty_slope(penalty, own + j, u[j]) * share : g[j];
      if (active) u[j] -= a * (weight * all + (steps.pull * u[j] + drift[j]));
      square += u[j] * u[j];
    }
    if (!PLAIN && steps.radius < 1e300) {
#pragma unroll
      for (int half = L / 2; half > 0; half /= 2)
        if (half < P) square += __shfl_xor_sync(ALL, square, half);
      double shrink = square > 0.0 ? fmin(1.0, steps.radius / sqrt(square)) : 1.0;
#pragma unroll
      for (int j = 0; j < OWN; j++)
        if (active) u[j] *= shrink;
    }
#pragma unroll
    for (int j = 0; j < OWN; j++) {
      one_u[own + j] = u[j];
      if (active) mean[j] += theta * (u[j] - mean[j]);
    }
    __syncwarp();
  }
  if (most > 0) __syncthreads();
  if (!here) return;
#pragma unroll
  for (int j = 0; j < OWN; j++) {
    if (own + j >= d) continue;
    long long at = (long long)place * d + own + j;
    last[at] = u[j];
    averaged[at] = average ? mean[j] : u[j];
  }
  if (!PLAIN && slopes && total > 0.0)
    for (int r = lane; r < m; r += L) slopes[begin + r] /= total;
}

template <int D, int P, bool PLAIN, bool ONCE>
__global__ void __launch_bounds__(64, PLAIN && D <= 12 ? 10 : 1)
    descend_few(const REAL* __restrict__ X, int stride, int d, Labels labels, Chains chains, Parts parts, Penalty penalty,
                Steps steps, const double* __restrict__ start, const double* __restrict__ center,
                const double* __restrict__ shift, double* __restrict__ last, double* __restrict__ averaged,
                double* slopes) {
#define ALL_ARGUMENTS penalty, steps, start, center, shift, last, averaged, slopes
  if (blockIdx.x < parts.block[1])
    descend_part<32, D, P, PLAIN, ONCE>(X, stride, d, labels, chains, parts, 0, ALL_ARGUMENTS);
  else if (blockIdx.x < parts.block[2])
    descend_part<16, D, P, PLAIN, ONCE>(X, stride, d, labels, chains, parts, 1, ALL_ARGUMENTS);
  else if (blockIdx.x < parts.block[3])
    descend_part<8, D, P, PLAIN, ONCE>(X, stride, d, labels, chains, parts, 2, ALL_ARGUMENTS);
  else
    descend_part<4, D, P, PLAIN, ONCE>(X, stride, d, labels, chains, parts, 3, ALL_ARGUMENTS);
#undef ALL_ARGUMENTS
}

// Rows of any kind. Dense: data, with `stride` numbers from row to row. CSR: data, indices, indptr.
struct Matrix {
  const REAL* data;
  long long stride;
  const int* indices;
  const long long* indptr;
};

__device__ __forceinline__ double warp_sum(double value) {
#pragma unroll
  for (int half = 16; half > 0; half /= 2) value += __shfl_xor_sync(ALL, value, half);
  return value;
}

// a_row . u, by a warp; every lane gets it.
template <bool SPARSE>
__device__ __forceinline__ double warp_dot(const Matrix& X, long long row, int d, const double* u, int lane) {
  double p = 0.0;
  if constexpr (SPARSE) {
    for (long long e = X.indptr[row] + lane; e < X.indptr[row + 1]; e += 32) p += X.data[e] * u[X.indices[e]];
  } else {
    const REAL* x = X.data + row * X.stride;
    for (int j = lane; j < d; j += 32) p += x[j] * u[j];
  }
  return warp_sum(p);
}

// g <- g + s a_row of a CSR row, by a warp.
__device__ __forceinline__ void warp_add(const Matrix& X, long long row, double s, double* g, int lane) {
  for (long long e = X.indptr[row] + lane; e < X.indptr[row + 1]; e += 32) atomicAdd(g + X.indices[e], s * X.data[e]);
}

// Any number of coordinates: a block works on a chain. Room for each chain: its table of rows, slopes of a mini-batch,
// and g, d numbers.
template <bool SPARSE>
__global__ void descend_block(Matrix X, int d, Labels labels, Chains chains, Penalty penalty, Steps steps,
                              const double* center, const double* shift, double* last, double* averaged, double* slopes,
                              int* tables, const long long* table_at, double* batch_slopes,
                              const long long* batch_at, double* sums) {
  __shared__ double parts[32];
  int chain = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  long long begin = chains.first[chain], at = (long long)chain * d;
  int m = chains.rows[chain], size = chains.batch[chain], count = chains.steps[chain];
  double weight = chains.scale[chain] * m / size, share = (double)size / m, total = 0.0;
  u64 counter = chains.counter[chain];
  bool drawn = size < m;
  int* table = tables + table_at[chain];
  double *s = batch_slopes + batch_at[chain], *u = last + at, *mean = averaged + at, *g = sums + at;
  if (drawn)
    for (int r = threadIdx.x; r < m; r += blockDim.x) table[r] = r;
  __syncthreads();
  for (int t = 0; t < count; t++) {
    double a = step_size(steps, chains, chain, t), theta = steps.average ? steps.average[t] : 0.0, cut = 0.0;
    if (slopes) {
      cut = t > 0 ? theta / (1.0 - theta) * total : 1.0;
      total += cut;
    }
    if (drawn && warp == 0)
      for (int base = 0; base < size; base += 32) {
        Draws<32> some;
        some.look(base, size, m, counter, lane);
        some.follow();
        some.take(table);
      }
    if (drawn) counter += (u64)((size + 1) / 2) * GOLDEN;
    if (SPARSE)
      for (int j = threadIdx.x; j < d; j += blockDim.x) g[j] = 0.0;
    __syncthreads();
    for (int r = warp; r < size; r += warps) {
      long long row = begin + (drawn ? table[r] : r);
      double p = warp_dot<SPARSE>(X, row, d, u, lane);
      double slope = loss_slope(labels.parameter, p, labels.y[row]);
      if (lane == 0) {
        if (slopes) slopes[row] += cut * m / size * slope;
        s[r] = slope * labels.c[row];
      }
      if constexpr (SPARSE) warp_add(X, row, slope * labels.c[row], g, lane);
    }
    __syncthreads();
    double square = 0.0;
    for (int j = threadIdx.x; j < d; j += blockDim.x) {
      double all = 0.0;
      if constexpr (SPARSE) {
        all = g[j];
      } else {
        for (int r = 0; r < size; r++) {
          double one = s[r];
          if (one != 0.0) all += one * X.data[(begin + (drawn ? table[r] : r)) * X.stride + j];
        }
      }
      all += penalty_slope(penalty, j, u[j]) * share;
      double v = center ? center[at + j] : 0.0, h = shift ? shift[at + j] : 0.0;
      double x = u[j] - a * (weight * all + steps.pull * (u[j] - v) + h);
      u[j] = x;
      square += x * x;
    }
    double shrink = 1.0;
    if (steps.radius < 1e300) {
      square = warp_sum(square);
      if (lane == 0) parts[warp] = square;
      __syncthreads();
      square = 0.0;
      for (int w = 0; w < warps; w++) square += parts[w];
      if (square > 0.0) shrink = fmin(1.0, steps.radius / sqrt(square));
    }
    for (int j = threadIdx.x; j < d; j += blockDim.x) {
      u[j] *= shrink;
      if (steps.average) mean[j] += theta * (u[j] - mean[j]);
    }
    __syncthreads();
  }
  if (!steps.average)
    for (int j = threadIdx.x; j < d; j += blockDim.x) mean[j] = u[j];
  if (slopes && total > 0.0)
    for (int r = threadIdx.x; r < m; r += blockDim.x) slopes[begin + r] /= total;
}

// Cuts: the value and a subgradient of each part of each client's rows at a point, every row read once. L lanes of a warp
// share K rows at a time, with C pairs of coordinates each; the next K are on their way while these are worked on. Their
// K products are summed over the lanes so that each lane is left with its own (own_sums), whose slope it finds; all lanes
// then get them. A group of lanes keeps to one part. What each group finds goes to found[client][part][turn][1 + d],
// and add_up adds the turns.
template <int L, int C, int K>
__global__ void __launch_bounds__(256)
    cuts_few(const REAL* __restrict__ X, long long stride, int d, Labels labels, const long long* first,
             const int* rows, const double* points, long long points_of_client, int parts, int turns, double* found) {
  extern __shared__ double2 x[];  // [C][L]
  int client = blockIdx.y, lane = threadIdx.x % L, groups = blockDim.x / L;
  const double* point = points + client * points_of_client;
  for (int i = threadIdx.x; i < C * L; i += blockDim.x)
    x[i] = make_double2(2 * i < d ? point[2 * i] : 0.0, 2 * i + 1 < d ? point[2 * i + 1] : 0.0);
  __syncthreads();
  int group = blockIdx.x * groups + threadIdx.x / L;
  long long apart = (long long)parts * turns, begin = first[client];
  bool here = group < apart;
  long long end = here ? begin + rows[client] : begin, row = begin + group;
  int times = warp_max((int)((end - begin - group + K * apart - 1) / (K * apart)));
  double2 g[C];
  double f = 0.0;
#pragma unroll
  for (int i = 0; i < C; i++) g[i] = make_double2(0.0, 0.0);
  PAIR next[K][C];
  auto read = [&](long long from) {
#pragma unroll
    for (int k = 0; k < K; k++) {
      long long at = from + k * apart;
      const PAIR* pairs = (const PAIR*)(X + at * stride);
#pragma unroll
      for (int i = 0; i < C; i++)
        if (at < end && 2 * (lane + i * L) < stride)
          next[k][i] = __ldcs(pairs + lane + i * L);
        else
          next[k][i].x = next[k][i].y = 0;
    }
  };
  read(row);
  for (int time = 0; time < times; time++, row += K * apart) {
    double2 a[K][C];
    double p[K];
#pragma unroll
    for (int k = 0; k < K; k++)
#pragma unroll
      for (int i = 0; i < C; i++) a[k][i] = make_double2(next[k][i].x, next[k][i].y);
    long long own = row + lane % K * apart;
    double b = own < end ? labels.y[own] : 1.0, c = own < end ? labels.c[own] : 0.0;
    read(row + K * apart);
#pragma unroll
    for (int k = 0; k < K; k++) {
      p[k] = 0.0;
#pragma unroll
      for (int i = 0; i < C; i++) p[k] += a[k][i].x * x[i * L + lane].x + a[k][i].y * x[i * L + lane].y;
    }
    own_sums<K, L>(p, lane);
    double slope = c * loss_slope(labels.parameter, p[0], b);
    if (lane < K) f += c * loss_value(labels.parameter, p[0], b);
#pragma unroll
    for (int k = 0; k < K; k++) {
      double s = __shfl_sync(ALL, slope, k, L);
#pragma unroll
      for (int i = 0; i < C; i++) {
        g[i].x += s * a[k][i].x;
        g[i].y += s * a[k][i].y;
      }
    }
  }
#pragma unroll
  for (int half = L / 2; half > 0; half /= 2) f += __shfl_xor_sync(ALL, f, half);
  if (!here) return;
  double* out = found + ((long long)(client * parts + group % parts) * turns + group / parts) * (1 + d);
  if (lane == 0) out[0] = f;
#pragma unroll
  for (int i = 0; i < C; i++) {
    int j = 2 * (lane + i * L);
    if (j < d) out[1 + j] = g[i].x;
    if (j + 1 < d) out[2 + j] = g[i].y;
  }
}

// Tensor cores: c <- a b + c of 8 x 4 and 4 x 8 matrices of doubles. A lane has a[lane / 4][lane % 4],
// b[lane % 4][lane / 4], and c[lane / 4][2 (lane % 4)] and its right neighbour.
__device__ __forceinline__ void multiply(double* c, double a, double b) {
  asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
               : "+d"(c[0]), "+d"(c[1])
               : "d"(a), "d"(b));
}

// Have `to`, in shared memory, become *from, or zero, while the warp goes on: until arrived<N>, when all but the N last
// batches, each ended by sent(), are there.
template <typename T>
__device__ __forceinline__ void send(T* to, const T* from, bool there) {
  u32 at = (u32)__cvta_generic_to_shared(to);
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(at), "l"(from), "n"(sizeof(T)),
               "r"(there ? (int)sizeof(T) : 0));
}
__device__ __forceinline__ void sent() { asm volatile("cp.async.commit_group;"); }
template <int N>
__device__ __forceinline__ void arrived() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N));
  __syncwarp();
}

// The same at up to eight points, with tensor cores: a warp takes U times eight rows at a time, of 8 J numbers, where a
// row is not longer; the STAGES - 1 next ones are on their way. points[client][8][8 J], zero beyond `many` of them and
// beyond d.
//
// The products of points with rows are a matrix (8 points x 8 rows), of which each lane is left with one point at two
// rows: just where it must have the slopes for the product of slopes (8 points x 4 rows, twice) with rows. The columns of
// the matrix are rows 0 6 1 7 2 4 3 5, which keeps lanes off each other's banks.
template <int J, int U, int STAGES>
__global__ void __launch_bounds__(128)
    cuts_many(const REAL* __restrict__ X, long long stride, int d, Labels labels, const long long* first,
              const int* rows, const double* points, long long points_of_client, int parts, int turns, double* found,
              int many) {
  constexpr int ROWS = 8 * U, WIDTH = 8 * J + 4, COPIES = (ROWS * 4 * J + 31) / 32;  // of a lane, at most, for a tile
  struct Tile {
    double y[ROWS], c[ROWS];
    REAL rows[ROWS][WIDTH];
  };
  extern __shared__ double2 room[];
  int client = blockIdx.y, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int group = blockIdx.x * (blockDim.x / 32) + warp;
  if (group >= parts * turns) return;
  Tile* tiles = (Tile*)room + warp * STAGES;
  for (int i = lane; i < STAGES * (int)(sizeof(Tile) / 8); i += 32) ((double*)tiles)[i] = 0.0;
  __syncwarp();
  int part = group % parts, turn = group / parts, point = lane / 4, q = lane % 4, pairs = (int)stride / 2;
  const REAL* X_part = X + (first[client] + part) * stride;
  const double *y = labels.y + first[client] + part, *c = labels.c + first[client] + part;
  long long count = (rows[client] - part + parts - 1) / parts;  // rows of this part
  long long next = (long long)ROWS * turn;                      // of these, the first one of the next tile
  int row_of[COPIES], pair_of[COPIES];  // what a lane copies of each tile
#pragma unroll
  for (int i = 0; i < COPIES; i++) {
    row_of[i] = (lane + 32 * i) / pairs;
    pair_of[i] = (lane + 32 * i) % pairs;
  }
  auto read = [&](Tile& tile) {
#pragma unroll
    for (int i = 0; i < COPIES; i++) {
      if (row_of[i] >= ROWS) break;
      bool there = next + row_of[i] < count;
      const PAIR* from = (const PAIR*)(X_part + (there ? (next + row_of[i]) * parts * stride : 0)) + pair_of[i];
      send((PAIR*)tile.rows[row_of[i]] + pair_of[i], from, there);
    }
    for (int i = lane; i < ROWS; i += 32) {
      bool there = next + i < count;
      long long row = there ? (next + i) * parts : 0;
      send(&tile.y[i], y + row, there);
      send(&tile.c[i], c + row, there);
    }
    sent();
    next += (long long)ROWS * turns;
  };
  for (int stage = 0; stage < STAGES - 1; stage++) read(tiles[stage]);
  double at[2 * J], g[J][2], f = 0.0;
  const double* own = points + client * points_of_client + point * 8 * J + q;
#pragma unroll
  for (int i = 0; i < 2 * J; i++) at[i] = own[4 * i];
#pragma unroll
  for (int j = 0; j < J; j++) g[j][0] = g[j][1] = 0.0;
  int stage = 0, column = point % 2 ? 4 + (point / 2 ^ 2) : point / 2;  // the row that is column lane / 4 of the matrix
  for (long long begun = (long long)ROWS * turn; begun < count; begun += (long long)ROWS * turns) {
    arrived<STAGES - 2>();
    Tile& tile = tiles[stage];
    read(tiles[(stage + STAGES - 1) % STAGES]);
#pragma unroll
    for (int eight = 0; eight < ROWS; eight += 8) {
      double p[2] = {0.0, 0.0};
#pragma unroll
      for (int i = 0; i < 2 * J; i++) multiply(p, at[i], tile.rows[eight + column][4 * i + q]);
      int one = eight + q, other = eight + 4 + (q ^ 2);
      double b0 = tile.y[one], c0 = tile.c[one], b1 = tile.y[other], c1 = tile.c[other];
      f += c0 * loss_value(labels.parameter, p[0], b0) + c1 * loss_value(labels.parameter, p[1], b1);
      double s0 = c0 * loss_slope(labels.parameter, p[0], b0), s1 = c1 * loss_slope(labels.parameter, p[1], b1);
#pragma unroll
      for (int j = 0; j < J; j++) {
        multiply(g[j], s0, tile.rows[one][8 * j + point]);
        multiply(g[j], s1, tile.rows[other][8 * j + point]);
      }
    }
    stage = (stage + 1) % STAGES;
    __syncwarp();
  }
  f += __shfl_xor_sync(ALL, f, 1);
  f += __shfl_xor_sync(ALL, f, 2);
  if (point >= many) return;
  double* out = found + (((long long)(client * parts + part) * turns + turn) * many + point) * (1 + d);
  if (q == 0) out[0] = f;
#pragma unroll
  for (int j = 0; j < J; j++)
#pragma unroll
    for (int i = 0; i < 2; i++)
      if (8 * j + 2 * q + i < d) out[1 + 8 * j + 2 * q + i] = g[j][i];
}

// The value alone of each client's rows, few, at a point with few coordinates: a warp takes a client, a lane a row.
__global__ void values_few(const REAL* __restrict__ X, int stride, int d, Labels labels, int n, const long long* first,
                           const int* rows, const double* __restrict__ points, double* values) {
  int client = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (client >= n) return;
  const double* x = points + (long long)client * d;
  double sum = 0.0;
  for (int r = lane; r < rows[client]; r += 32) {
    long long row = first[client] + r;
    double p = 0.0;
    for (int j = 0; j < d; j++) p += X[row * stride + j] * x[j];
    sum += labels.c[row] * loss_value(labels.parameter, p, labels.y[row]);
  }
  sum = warp_sum(sum);
  if (lane == 0) values[client] = sum;
}

// sums[i][j] = the sum over turns of found[i][turn][j], for `width` numbers j; blockDim is (32, 8).
__global__ void add_up(const double* found, int turns, int width, double* sums) {
  __shared__ double parts[8][33];
  int j = blockIdx.x * 32 + threadIdx.x;
  const double* own = found + (long long)blockIdx.y * turns * width;
  double sum = 0.0;
  if (j < width)
#pragma unroll 8
    for (int turn = threadIdx.y; turn < turns; turn += 8) sum += own[(long long)turn * width + j];
  parts[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y == 0 && j < width) {
    for (int i = 1; i < 8; i++) sum += parts[i][threadIdx.x];
    sums[(long long)blockIdx.y * width + j] = sum;
  }
}

// The same for CSR rows, at one point: a warp takes a row. sums[client][part][1 + d] are 0 at first.
__global__ void cuts_sparse(Matrix X, int d, Labels labels, const long long* first, const int* rows,
                            const double* points, long long points_of_client, int parts, double* sums) {
  int client = blockIdx.y, lane = threadIdx.x % 32, warps = gridDim.x * blockDim.x / 32;
  const double* x = points + client * points_of_client;
  for (int r = (blockIdx.x * blockDim.x + threadIdx.x) / 32; r < rows[client]; r += warps) {
    long long row = first[client] + r;
    double p = warp_dot<true>(X, row, d, x, lane), b = labels.y[row], c = labels.c[row];
    double* out = sums + (long long)(client * parts + r % parts) * (1 + d);
    if (lane == 0) atomicAdd(out, c * loss_value(labels.parameter, p, b));
    double s = c * loss_slope(labels.parameter, p, b);
    if (s != 0.0) warp_add(X, row, s, out + 1, lane);
  }
}

// One step of all clients, on sums[client][1 + d] of their losses at u; step t of those that take more than t.
__global__ void step(const double* sums, int d, Chains chains, Penalty penalty, Steps steps, int t, const double* center,
                     const double* shift, double* u, double* mean) {
  int chain = blockIdx.y;
  if (t >= chains.steps[chain]) return;
  double a = step_size(steps, chains, chain, t), theta = steps.average ? steps.average[t] : 0.0;
  for (int j = blockIdx.x * blockDim.x + threadIdx.x; j < d; j += gridDim.x * blockDim.x) {
    long long at = (long long)chain * d + j;
    double all = sums[(long long)chain * (1 + d) + 1 + j] + penalty_slope(penalty, j, u[at]);
    double v = center ? center[at] : 0.0, h = shift ? shift[at] : 0.0;
    double x = u[at] - a * (chains.scale[chain] * all + steps.pull * (u[at] - v) + h);
    u[at] = x;
    mean[at] = steps.average ? mean[at] + theta * (x - mean[at]) : x;
  }
}

// Values and slopes, times the weights, of m rows from `first` on, at predictions p.
__global__ void at_predictions(const double* p, long long first, long long m, Labels labels, double* values,
                               double* slopes) {
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < m; i += (long long)gridDim.x * blockDim.x) {
    double b = labels.y[first + i], c = labels.c[first + i];
    values[i] = c * loss_value(labels.parameter, p[i], b);
    slopes[i] = c * loss_slope(labels.parameter, p[i], b);
  }
}
