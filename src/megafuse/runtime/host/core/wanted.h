// Kernels that will be launched soon and are not built: listed first, then built side by side.
#pragma once

#include "core/request.h"

namespace megafuse {

// Thrown where a kernel was only asked for, in place of what a plan would go on with.
struct OnlyAsked {};

// Of one device; made and used with the GIL.
class Wanted {
 public:
  explicit Wanted(c10::Device device) : device_(device), asked_(PyList_New(0)) {}

  void add(const Request& request, const Space& space) {
    const Key key = key_of(request, space);
    if (std::find(keys_.begin(), keys_.end(), key) != keys_.end()) return;
    const Owned what(description_of(request, space));
    const Owned all(KernelTable::all_arguments(key, device_, what.object));
    if (PyList_Append(asked_.object, all.object) < 0) throw python_error();
    keys_.push_back(key);
  }

  // A single one is as well built by who needs it.
  void build() {
    if (keys_.size() > 1) KernelTable::get().build_all(keys_, device_, asked_.object);
  }

 private:
  c10::Device device_;
  std::vector<Key> keys_;
  Owned asked_;
};

}  // namespace megafuse
