// A rung's source, CUDA or C++, on the CPU, with every access to memory checked and counted.
//
// The test replaces `float*` by Counted<float> in the source's text, so what runs here is what the
// learner reads. A CUDA thread is a std::thread where threads wait for each other, else a turn of
// a loop; a block begins when the one before has ended.
#include <barrier>
#include <list>
#include <thread>
#include <type_traits>
#include <unordered_map>
#include <vector>

// A tensor, as the test hands it over. `bad` counts accesses outside or not on a multiple of 16.
struct Buffer {
  float* data;
  long long floats, reads, writes, bad;
};

// A cache of 128 lines of 64 bytes, the one not used for longest goes first.
struct Cache {
  std::list<size_t> lines;
  std::unordered_map<size_t, std::list<size_t>::iterator> where;
  long long fetched = 0;
  void touch(const void* address) {
    const size_t line = reinterpret_cast<size_t>(address) / 64;
    if (auto found = where.find(line); found != where.end()) {
      lines.splice(lines.begin(), lines, found->second);
      return;
    }
    ++fetched;
    lines.push_front(line);
    where[line] = lines.begin();
    if (lines.size() > 128) {
      where.erase(lines.back());
      lines.pop_back();
    }
  }
};
static Cache* cache = nullptr;  // only where one thread runs alone

static bool inside(Buffer* buffer, long long at, int floats, long long Buffer::* count) {
  const bool aligned = floats == 1 || reinterpret_cast<size_t>(buffer->data + at) % 16 == 0;
  if (at < 0 || at + floats > buffer->floats || !aligned) {
    __atomic_fetch_add(&buffer->bad, 1, __ATOMIC_RELAXED);
    return false;
  }
  __atomic_fetch_add(&(buffer->*count), floats, __ATOMIC_RELAXED);
  if (cache) cache->touch(buffer->data + at);
  return true;
}

struct alignas(16) float4 {
  float x, y, z, w;
};

template <class V>
struct Reference {
  Buffer* buffer;
  long long at;
  operator V() const {
    V value = {};
    if (inside(buffer, at, sizeof(V) / 4, &Buffer::reads))
      value = *reinterpret_cast<V*>(buffer->data + at);
    return value;
  }
  V operator=(V value) const {
    if (inside(buffer, at, sizeof(V) / 4, &Buffer::writes))
      *reinterpret_cast<V*>(buffer->data + at) = value;
    return value;
  }
  V operator+=(V value) const { return *this = V(*this) + value; }
  V operator/=(V value) const { return *this = V(*this) / value; }
};

template <class T>
struct Counted {
  using Value = std::remove_const_t<T>;
  Buffer* buffer = nullptr;
  long long at = 0;
  Counted operator+(long long n) const { return {buffer, at + n * (long long)(sizeof(T) / 4)}; }
  auto operator[](long long i) const {
    Reference<Value> element = {buffer, (*this + i).at};
    if constexpr (std::is_const_v<T>)
      return Value(element);
    else
      return element;
  }
  auto operator*() const { return (*this)[0]; }
};

template <class To, class From>
Counted<To> counted_cast(Counted<From> pointer) {
  return {pointer.buffer, pointer.at};
}

#define __global__
#define __device__
#define __shared__ static

struct Three {
  unsigned x = 0, y = 0, z = 0;
};
static thread_local Three threadIdx, blockIdx, blockDim, gridDim;
static std::barrier<>* everyone = nullptr;
static inline void __syncthreads() { everyone->arrive_and_wait(); }
static inline float __shfl_xor_sync(unsigned, float mine, int away) {
  static float shown[1024];
  shown[threadIdx.x] = mine;
  __syncthreads();
  const float theirs = shown[threadIdx.x ^ away];
  __syncthreads();
  return theirs;
}

template <class A>
struct Argument {
  static A of(void* word) { return *static_cast<A*>(word); }
};
template <class T>
struct Argument<Counted<T>> {
  static Counted<T> of(void* word) { return {static_cast<Buffer*>(word), 0}; }
};

template <class... A, size_t... I>
void call(void (*kernel)(A...), void** words, std::index_sequence<I...>) {
  kernel(Argument<A>::of(words[I])...);
}
template <class... A>
void call(void (*kernel)(A...), void** words) {
  call(kernel, words, std::index_sequence_for<A...>());
}

// Returns how many bytes a small cache would have fetched.
template <class... A>
long long on_cpu(void (*kernel)(A...), void** words) {
  Cache small;
  cache = &small;
  call(kernel, words);
  cache = nullptr;
  return small.fetched * 64;
}

template <class... A>
long long as_cuda(void (*kernel)(A...), void** words, const unsigned* shape, bool together) {
  const unsigned across = shape[2], down = shape[3];
  auto thread = [&](Three block, unsigned x, unsigned y) {
    blockIdx = block;
    gridDim = {shape[0], shape[1], 1};
    blockDim = {across, down, 1};
    threadIdx = {x, y, 0};
    call(kernel, words);
    everyone->arrive_and_drop();  // those that go on do not wait for it
  };
  for (unsigned by = 0; by < shape[1]; ++by) {
    for (unsigned bx = 0; bx < shape[0]; ++bx) {
      std::barrier<> all(across * down);
      everyone = &all;
      std::vector<std::thread> running;
      for (unsigned y = 0; y < down; ++y) {
        for (unsigned x = 0; x < across; ++x) {
          if (together)
            running.emplace_back(thread, Three{bx, by, 0}, x, y);
          else
            thread(Three{bx, by, 0}, x, y);
        }
      }
      for (auto& each : running) each.join();
    }
  }
  return 0;
}
