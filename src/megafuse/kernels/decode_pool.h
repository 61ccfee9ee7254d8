// The threads of a decoder on a CPU. They are started by its first launch and sleep between two;
// `close` ends them. A launch runs on them alone (`begin`), so that the caller can take tokens as
// they are made, or with the caller as thread 0 (`run`).
//
// A forked child has a copy of this memory and none of the threads: it starts its own.
#pragma once

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "decode.h"

namespace mf::decode {

MF_INLINE u64 now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return u64(t.tv_sec) * 1000000000u + u64(t.tv_nsec);
}

// One turn of a loop that waits for another thread. Now and then the core is offered to others:
// where there are more threads than free cores, the one that is waited for needs it.
MF_INLINE void spin(u32 turn) {
  if (turn % 256 == 0) {
    sched_yield();
    return;
  }
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class Pool {
 public:
  using Work = void (*)(const Step& step, i64 index);
  static constexpr i64 kMost = 1024;

  static Pool* open() { return static_cast<Pool*>(calloc(1, sizeof(Pool))); }

  static void close(Pool* pool) {
    if (pool->is_mine()) pool->end_threads();
    free(pool);
  }

  // Runs the step; the caller is its thread 0.
  u64 run(const Step& step, Work work) {
    if (const u64 trouble = start(step, work, 1)) return trouble;
    work(step, 0);
    for (u32 turn = 1; is_running(); ++turn) spin(turn);
    return kDone;
  }

  // Starts the step and returns at once.
  u64 begin(const Step& step, Work work) { return start(step, work, 0); }

  // Until is_there() holds, or the step has ended, or so many nanoseconds have passed. Returns
  // whether the step is still running.
  template <class Condition>
  bool wait(u64 nanoseconds, Condition is_there) {
    if (!is_mine()) return false;  // it runs in the parent process
    timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    const u64 end = u64(until.tv_nsec) + nanoseconds;
    until.tv_sec += time_t(end / 1000000000u);
    until.tv_nsec = long(end % 1000000000u);
    pthread_mutex_lock(&lock_);
    int outcome = 0;
    while (outcome == 0 && is_running() && !is_there())
      outcome = pthread_cond_timedwait(&news_, &lock_, &until);
    const bool running = is_running();
    pthread_mutex_unlock(&lock_);
    return running;
  }

  // From a thread of the step: there is something to see for those who wait.
  void tell() {
    pthread_mutex_lock(&lock_);
    pthread_cond_broadcast(&news_);
    pthread_mutex_unlock(&lock_);
  }

 private:
  // Threads look out for work so long before they sleep: launches that follow each other find them
  // awake, and torch's threads, which run in between, are not kept waiting.
  static constexpr u64 kAwake = 50000;  // nanoseconds

  struct Member {
    Pool* pool;
    i64 index;
    u32 seen;  // launches before it was started
    bool is_started;
    pthread_t thread;
  };

  bool is_mine() const { return process_ == i64(getpid()); }
  // Once it is not, all that its threads wrote is there to read.
  bool is_running() const { return __atomic_load_n(&busy_, __ATOMIC_ACQUIRE) > 0; }

  u64 start(const Step& step, Work work, i64 first) {
    const i64 threads = i64(step.threads);
    if (threads > kMost) return kNoThreads;
    if (!is_mine()) reset();
    for (i64 i = first; i < threads; ++i)
      if (!members_[i].is_started && !start_thread(i)) return kNoThreads;
    if (first >= threads) return kDone;
    pthread_mutex_lock(&lock_);
    step_ = &step, work_ = work, first_ = first, end_ = threads;
    __atomic_store_n(&busy_, u32(threads - first), __ATOMIC_RELAXED);
    __atomic_store_n(&launches_, launches_ + 1, __ATOMIC_RELEASE);
    pthread_cond_broadcast(&work_there_);
    pthread_mutex_unlock(&lock_);
    return kDone;
  }

  void reset() {
    __builtin_memset(static_cast<void*>(this), 0, sizeof *this);
    pthread_mutex_init(&lock_, nullptr);
    pthread_cond_init(&work_there_, nullptr);
    pthread_cond_init(&news_, nullptr);
    process_ = i64(getpid());
  }

  // Signals are for the program's own threads: Ctrl-C is to interrupt the one that waits.
  bool start_thread(i64 index) {
    Member& member = members_[index];
    member.pool = this, member.index = index, member.seen = launches_;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    member.is_started = pthread_create(&member.thread, nullptr, live, &member) == 0;
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return member.is_started;
  }

  static void* live(void* given) {
    Member& member = *static_cast<Member*>(given);
    member.pool->work_of(member);
    return nullptr;
  }

  void work_of(Member& member) {
    for (;;) {
      look_out(member.seen);
      pthread_mutex_lock(&lock_);
      while (launches_ == member.seen && !is_closing_) pthread_cond_wait(&work_there_, &lock_);
      const bool over = is_closing_;
      const Step* const step = step_;
      const Work work = work_;
      member.seen = launches_;
      const bool takes_part = member.index >= first_ && member.index < end_;
      pthread_mutex_unlock(&lock_);
      if (over) return;
      if (!takes_part) continue;
      work(*step, member.index);
      if (__atomic_sub_fetch(&busy_, 1, __ATOMIC_ACQ_REL) == 0) tell();
    }
  }

  void look_out(u32 seen) const {
    const u64 start = now();
    for (u32 turn = 1;; ++turn) {
      if (__atomic_load_n(&launches_, __ATOMIC_ACQUIRE) != seen) return;
      if (__atomic_load_n(&is_closing_, __ATOMIC_RELAXED)) return;
      if (turn % 64 == 0 && now() - start > kAwake) return;
      spin(turn);
    }
  }

  void end_threads() {
    pthread_mutex_lock(&lock_);
    __atomic_store_n(&is_closing_, true, __ATOMIC_RELAXED);
    pthread_cond_broadcast(&work_there_);
    pthread_mutex_unlock(&lock_);
    for (Member& member : members_)
      if (member.is_started) pthread_join(member.thread, nullptr);
  }

  pthread_mutex_t lock_;
  pthread_cond_t work_there_, news_;
  i64 process_;  // that the threads are of
  // The launch: its number, how many threads are at it still, what is done, by the threads from
  // `first_` to before `end_`.
  u32 launches_, busy_;
  const Step* step_;
  Work work_;
  i64 first_, end_;
  bool is_closing_;
  Member members_[kMost];
};

}  // namespace mf::decode
