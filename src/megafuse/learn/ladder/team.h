// Put after a rung's CPU source by launch.py: calls its functions on torch's threads, with
// arguments that come as an array of addresses.
namespace team {

using i64 = long long;

// Where the OpenMP runtime that torch brought has its functions.
struct OpenMp {
  void (*parallel)(void (*work)(void*), void* data, unsigned threads, unsigned flags);
  int (*thread)();
  int (*threads)();
};

template <int... I>
struct Places {};
template <int N, int... I>
struct FirstPlaces : FirstPlaces<N - 1, N - 1, I...> {};
template <int... I>
struct FirstPlaces<0, I...> {
  using type = Places<I...>;
};

template <class... A, int... I>
void call(void (*function)(A...), void** words, Places<I...>) {
  function(*static_cast<A*>(words[I])...);
}

// The last two arguments of a rung are which part it is to do, and of how many.
template <class... A>
void call_part(void (*function)(A...), void** words, i64 part, i64 parts) {
  constexpr int given = sizeof...(A) - 2;
  void* all[sizeof...(A)];
  for (int i = 0; i < given; ++i) all[i] = words[i];
  all[given] = &part;
  all[given + 1] = &parts;
  call(function, all, typename FirstPlaces<sizeof...(A)>::type());
}

using Part = void (*)(void** words, i64 part, i64 parts);

struct Task {
  const OpenMp* openmp;
  Part part;
  void** words;
};

static void work(void* data) {
  const Task& task = *static_cast<Task*>(data);
  task.part(task.words, task.openmp->thread(), task.openmp->threads());
}

}  // namespace team

extern "C" void run_on_team(const team::OpenMp* openmp, team::Part part, void** words,
                            team::i64 parts) {
  team::Task task = {openmp, part, words};
  openmp->parallel(team::work, &task, unsigned(parts), 0);
}

#define PART_OF(name)                                                             \
  extern "C" void part_of_##name(void** words, team::i64 part, team::i64 parts) { \
    team::call_part(name, words, part, parts);                                    \
  }
