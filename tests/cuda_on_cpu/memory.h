// Memory of the emulated GPU: every allocation between two pages that nobody may touch.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

namespace emulator {

// The end lies against the second page, as far as 16-byte alignment allows. What is left over of
// the pages is filled with kFiller, so that a read of it gives NaN and a write of it is found.
class Memory {
 public:
  static Memory& get() {
    static Memory* memory = new Memory;
    return *memory;
  }

  void* allocate(size_t bytes) {
    const size_t page = size_t(sysconf(_SC_PAGESIZE)), used = (bytes + 15) / 16 * 16;
    const size_t inside = (used + page - 1) / page * page;
    char* const base = static_cast<char*>(mmap(nullptr, inside + 2 * page, PROT_NONE,
                                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (base == MAP_FAILED) return nullptr;
    char* const first = base + page;
    if (inside && mprotect(first, inside, PROT_READ | PROT_WRITE) != 0) return nullptr;
    char* const data = first + inside - used;
    // Of a huge one, which is there for its addresses, only the edges are touched.
    std::memset(first, kFiller, bytes < kHuge ? inside : size_t(data - first));
    std::memset(data + bytes, kFiller, used - bytes);
    const std::lock_guard<std::mutex> lock(mutex_);
    blocks_[data] = {base, inside + 2 * page, first, first + inside, bytes};
    return data;
  }
  void free(void* data) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto it = blocks_.find(static_cast<char*>(data));
    if (it == blocks_.end()) abort();
    munmap(it->second.base, it->second.mapped);
    blocks_.erase(it);
  }

  bool has(const void* address) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return block_of(address) != blocks_.end();
  }

  // What was written beside an allocation, or nothing.
  std::string damage() {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [data, block] : blocks_) {
      for (const char* at = block.first; at < data; ++at)
        if (*at != char(kFiller)) return told(data, block, at, "written");
      for (const char* at = data + block.bytes; at < block.end; ++at)
        if (*at != char(kFiller)) return told(data, block, at, "written");
    }
    return {};
  }
  // Where an address lies among the allocations.
  std::string place_of(const void* address) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto it = block_of(address);
    if (it != blocks_.end())
      return told(it->first, it->second, static_cast<const char*>(address), "accessed");
    char text[64];
    std::snprintf(text, sizeof text, "address %p is in no tensor", address);
    return text;
  }

 private:
  static constexpr int kFiller = 0xff;
  static constexpr size_t kHuge = size_t(1) << 28;
  struct Block {
    char* base;
    size_t mapped;
    char *first, *end;
    size_t bytes;
  };

  std::map<char*, Block>::const_iterator block_of(const void* address) const {
    const char* const at = static_cast<const char*>(address);
    auto it = blocks_.begin();
    while (it != blocks_.end() &&
           !(at >= it->second.base && at < it->second.base + it->second.mapped))
      ++it;
    return it;
  }
  static std::string told(const char* data, const Block& block, const char* at, const char* how) {
    char text[160];
    if (at < data)
      std::snprintf(text, sizeof text, "%td bytes before a tensor of %zu bytes were %s", data - at,
                    block.bytes, how);
    else
      std::snprintf(text, sizeof text, "byte %td of a tensor of %zu bytes was %s", at - data,
                    block.bytes, how);
    return text;
  }

  std::mutex mutex_;
  std::map<char*, Block> blocks_;
};

}  // namespace emulator
