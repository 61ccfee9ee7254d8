// A lock that a forked child finds free.
//
// fork() copies memory and the one thread that calls it. A lock that another thread held at that
// moment stays locked in the child, which then waits for ever: a reader that was half through, too,
// keeps every writer out. So fork() first takes all of these locks, waiting for the threads that
// hold one; then the parent releases them and the child gets new ones. The tables that they guard
// are whole in the child, too, since nobody was in the middle of a change.
//
// The thread that forks has the GIL. Nobody may therefore call Python, or wait for the GIL, while
// holding a Mutex: build first, then lock and insert.
#pragma once

#include <pthread.h>

#include <mutex>
#include <new>
#include <shared_mutex>
#include <vector>

namespace megafuse {

class Mutex {
 public:
  Mutex() {
    static const int registered = pthread_atfork(lock_all, unlock_all, renew_all);
    (void)registered;
    std::lock_guard<std::mutex> lock(all().mutex);
    all().made.push_back(this);
  }
  Mutex(const Mutex&) = delete;

  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }
  void lock_shared() { mutex_.lock_shared(); }
  void unlock_shared() { mutex_.unlock_shared(); }

 private:
  struct All {
    std::mutex mutex;
    std::vector<Mutex*> made;
  };
  static All& all() {
    static All* const all = new All;  // never destroyed: threads may outlive main
    return *all;
  }
  static void lock_all() {
    all().mutex.lock();
    for (Mutex* each : all().made) each->lock();
  }
  static void unlock_all() {
    for (Mutex* each : all().made) each->unlock();
    all().mutex.unlock();
  }

  // In the child. Not unlock: glibc tells a writer from a reader by its thread's number, and the
  // child's thread has a new one.
  static void renew_all() {
    for (Mutex* each : all().made) new (&each->mutex_) std::shared_mutex;
    new (&all().mutex) std::mutex;
  }

  std::shared_mutex mutex_;
};

}  // namespace megafuse
