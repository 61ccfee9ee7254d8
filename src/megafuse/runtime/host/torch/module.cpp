// megafuse's host runtime: the Python module, and the direct path from a Python call to
// a kernel launch. Compiled once per torch version on first use, against torch's headers
// alone. core/ knows kernels and launches, and no op; torch/ is what PyTorch sees: op.h (an op as
// data), program.h (how one is computed), plain.h (what takes the direct path), autograd.h,
// dispatch.h (what takes the other); programs/ has the ops that are more than one launch.
#include <ATen/record_function.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/python_headers.h>

#include "graph/guarded.h"
#include "graph/replay.h"
#include "graph/unchanged.h"
#include "programs/optimizer.h"
#include "programs/optimizer_state.h"
#include "programs/product.h"
#include "programs/programs.h"
#include "torch/dispatch.h"

namespace megafuse {
namespace {

// Reads a real number: a Python float or int, or what converts to one (NumPy's scalars). False:
// it is a tracer's symbol, which only the dispatcher takes.
bool read_number(PyObject* object, double& number) {
  if (C10_LIKELY(PyFloat_CheckExact(object))) {
    number = PyFloat_AS_DOUBLE(object);
    return true;
  }
  const PyNumberMethods* methods = Py_TYPE(object)->tp_as_number;
  const bool real = PyLong_Check(object) || (methods && methods->nb_float);
  if (!real || PyBool_Check(object) || THPVariable_Check(object)) throw BadArguments{};
  if (PyObject_HasAttrString(object, "node")) return false;
  number = PyFloat_AsDouble(object);
  if (PyErr_Occurred()) {  // an array, or too large
    PyErr_Clear();
    throw BadArguments{};
  }
  return true;
}

// Reads an int, or what stands for one (NumPy's integers). False: it is symbolic.
bool read_integer(PyObject* object, double& number) {
  if (PyBool_Check(object) || THPVariable_Check(object)) throw BadArguments{};
  if (PyObject_HasAttrString(object, "node")) return false;
  PyObject* index = PyNumber_Index(object);
  if (index) {
    number = PyLong_AsDouble(index);
    Py_DECREF(index);
  }
  if (PyErr_Occurred()) {  // not an integer, or too large
    PyErr_Clear();
    throw BadArguments{};
  }
  return true;
}

// Reads Python arguments into a Call. False: not plain, take the dispatcher.
bool read_python(const Op& op, PyObject* const* args, Call& call) {
  bool plain = true;
  for (size_t i = 0; i < op.args.size(); ++i) {
    PyObject* object = args[i];
    const Arg& arg = op.args[i];
    if (object == Py_None && arg.optional) {
      if (arg.is_number()) call.number[i] = NAN;
      continue;
    }
    switch (arg.kind) {
      case ArgKind::kTensorOrNumber:
        if (!THPVariable_Check(object)) {
          plain = read_number(object, call.number[i]) && plain;
          break;
        }
        [[fallthrough]];
      case ArgKind::kTensor:
      case ArgKind::kAnyTensor:
        if (C10_LIKELY(THPVariable_CheckTypeExact(Py_TYPE(object)))) {
          call.tensor[i] = &THPVariable_Unpack(object);
          if (!is_supported(*call.tensor[i])) throw BadArguments{};
          plain = plain && is_plain(*call.tensor[i]);
        } else if (THPVariable_Check(object)) {
          plain = false;
        } else {
          throw BadArguments{};
        }
        break;
      case ArgKind::kNumber:
        plain = read_number(object, call.number[i]) && plain;
        if (arg.optional && std::isnan(call.number[i])) throw BadArguments{};
        break;
      case ArgKind::kInteger:
        plain = read_integer(object, call.number[i]) && plain;
        break;
      case ArgKind::kFlag:
        if (!PyBool_Check(object)) throw BadArguments{};
        call.choice[i] = object == Py_True;
        break;
      case ArgKind::kChoice: {
        if (!PyUnicode_Check(object)) throw BadArguments{};
        size_t c = 0;
        while (c < arg.choices.size() &&
               PyUnicode_CompareWithASCIIString(object, arg.choices[c].c_str()) != 0)
          ++c;
        if (c == arg.choices.size()) throw BadArguments{};
        call.choice[i] = uint8_t(c);
        break;
      }
    }
  }
  return plain && only_plain_modes() && !autocast_is_on(op.autocast);
}

PyObject* forward_to(PyObject* callable, PyObject* const* args, Py_ssize_t n) {
  return PyObject_Vectorcall(callable, args, size_t(n), nullptr);
}

PyObject* wrap(const Op& op, const Results& results) {
  if (C10_LIKELY(op.outputs == 1)) return THPVariable_Wrap(results[0]);
  PyObject* tuple = PyTuple_New(op.outputs);
  for (int i = 0; i < op.outputs; ++i) PyTuple_SET_ITEM(tuple, i, THPVariable_Wrap(results[i]));
  return tuple;
}

// Cases that the reference runs, under PyTorch's own differentiation: forward mode, tensors of
// inference mode that would have to be saved, a number given as a CPU tensor beside CUDA ones whose
// gradient would have to be moved to the CPU.
bool needs_reference(const Call& call, const Agreement& agreement, bool differentiate) {
  for (int arg : call.op->tensors) {
    const at::Tensor* t = call.tensor[arg];
    if (!t) continue;
    if (t->_fw_grad(/*level=*/0).defined()) return true;
    if (differentiate && (t->is_inference() || (agreement.by_value[arg] && t->requires_grad())))
      return true;
  }
  return false;
}

// The direct path.
PyObject* call_op(PyObject* self, PyObject* const* args, Py_ssize_t n) {
  HANDLE_TH_ERRORS
  const Op& op = *static_cast<const Op*>(PyCapsule_GetPointer(self, nullptr));
  Call call{&op};
  try {
    if (n != Py_ssize_t(op.args.size())) throw BadArguments{};
    if (!read_python(op, args, call)) return forward_to(op.slow, args, n);
    RECORD_FUNCTION(op.name, std::vector<c10::IValue>());
    const Agreement agreement = agree(call);
    const bool differentiate = wants_grad(call);
    if (needs_reference(call, agreement, differentiate)) throw UseReference{};
    RandomState random;
    if (draws(call)) random = draw_state(agreement.device);
    const Results results = run_forward(call, agreement, random, /*keep=*/differentiate);
    if (differentiate) record(call, results, random);
    return wrap(op, results);
  } catch (const BadArguments&) {
    Owned tuple(PyTuple_New(n));
    for (Py_ssize_t i = 0; i < n; ++i) PyTuple_SET_ITEM(tuple.object, i, Py_NewRef(args[i]));
    explain(op, tuple.object);
  } catch (const UseReference&) {
    return forward_to(op.reference, args, n);
  }
  END_HANDLE_TH_ERRORS
}

PyMethodDef call_op_def = {"megafuse_op",
                           reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call_op)),
                           METH_FASTCALL, nullptr};

PyObject* get(PyObject* dict, const char* name) {
  PyObject* item = PyDict_GetItemString(dict, name);
  TORCH_CHECK(item, "megafuse: op description lacks ", name);
  return item;
}

template <class Each>
void for_each(PyObject* sequence, const Each& each) {
  Owned fast(PySequence_Fast(sequence, "megafuse: a sequence was expected"));
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(fast.object); ++i)
    each(PySequence_Fast_GET_ITEM(fast.object, i));
}

// "...K", "3EE" (op.h). Python has made sure that it is one of these.
ShapeRule parse_shape(const std::string& text) {
  ShapeRule rule;
  rule.given = !text.empty();
  rule.leading = text.rfind("...", 0) == 0;
  int times = 0;
  for (char c : text.substr(rule.leading ? 3 : 0)) {
    if (c >= '0' && c <= '9') {
      times = times * 10 + (c - '0');
      continue;
    }
    rule.sizes.push_back({times ? times : 1, c});
    times = 0;
  }
  return rule;
}

template <size_t N>
size_t index_of(const char* const (&words)[N], const char* word) {
  const auto* found = std::find_if(std::begin(words), std::end(words),
                                   [&](const char* w) { return std::string(w) == word; });
  TORCH_CHECK(found != std::end(words), "megafuse: op description says ", word);
  return size_t(found - std::begin(words));
}

PyObject* callable(Op* op) {
  Owned capsule(PyCapsule_New(op, nullptr, nullptr));
  return PyCFunction_New(&call_op_def, capsule.object);
}

// register_op(description) -> callable. The description is made by registry/activation.py. An op
// that fails here leaves nothing behind; one that is known is not registered again, but answered:
// Ctrl-C may have come before Python saw the first answer.
PyObject* register_op(PyObject*, PyObject* d) {
  HANDLE_TH_ERRORS
  auto op = std::make_unique<Op>();
  op->name = op->functor.name = PyUnicode_AsUTF8(get(d, "name"));
  for (const auto& known : all_ops())
    if (known->name == op->name) return callable(known.get());
  static const char* const families[] = {"pointwise", "rows", "composite"};
  op->family = OpFamily(index_of(families, PyUnicode_AsUTF8(get(d, "family"))));
  op->outputs = int(PyLong_AsLong(get(d, "outputs")));
  for_each(get(d, "results"), [&](PyObject* r) { op->results.emplace_back(PyUnicode_AsUTF8(r)); });
  for_each(get(d, "args"), [&](PyObject* a) {
    const char *name, *kind, *shape;
    PyObject* choices;
    double least, most;
    int optional, own_dtype;
    if (!PyArg_ParseTuple(a, "ssOddpps", &name, &kind, &choices, &least, &most, &optional,
                          &own_dtype, &shape))
      throw python_error();
    static const char* const kinds[] = {
        "tensor", "any_tensor", "tensor_or_number", "number", "integer", "flag", "choice"};
    Arg arg{name,
            ArgKind(index_of(kinds, kind)),
            {},
            least,
            most,
            bool(optional),
            bool(own_dtype),
            parse_shape(shape)};
    for_each(choices, [&](PyObject* c) { arg.choices.emplace_back(PyUnicode_AsUTF8(c)); });
    const int position = int(op->args.size());
    if (arg.is_tensor()) op->tensors.push_back(position);
    if (arg.is_number()) op->numbers.push_back(position);
    if (arg.kind == ArgKind::kFlag || arg.kind == ArgKind::kChoice) {
      op->choices.push_back(position);
      op->functor.choices.push_back({arg.name, arg.choices});
    }
    op->args.push_back(std::move(arg));
  });
  TORCH_CHECK(op->args.size() <= size_t(kMaxArgs), "megafuse.", op->name, " has ", op->args.size(),
              " arguments, and a call holds ", kMaxArgs);
  if (get(d, "dtype") != Py_None) {
    TORCH_CHECK(std::string(PyUnicode_AsUTF8(get(d, "dtype"))) == "int8",
                "megafuse: the only fixed output dtype is int8");
    op->fixed_dtype = at::kChar;
  }
  op->dtype_like = int(PyLong_AsLong(get(d, "dtype_like")));
  op->inverted = int(PyLong_AsLong(get(d, "inverted")));
  op->laid_out_as = int(PyLong_AsLong(get(d, "laid_out_as")));
  op->random = op->functor.random = PyObject_IsTrue(get(d, "random"));
  if (op->random) op->p = op->position("p"), op->training = op->position("training");
  if (PyObject* autocast = get(d, "autocast"); autocast != Py_None) {
    op->autocast = c10::DispatchKeySet(c10::DispatchKey::AutocastCUDA);
    op->autocast_lowers = std::string(PyUnicode_AsUTF8(autocast)) == "lower";
    if (op->autocast_lowers) op->autocast = op->autocast.add(c10::DispatchKey::AutocastCPU);
  }
  for_each(get(d, "saved"), [&](PyObject* s) { op->saved.push_back(int(PyLong_AsLong(s))); });
  for_each(get(d, "grads"), [&](PyObject* g) {
    int arg, result, passthrough;
    if (!PyArg_ParseTuple(g, "iip", &arg, &result, &passthrough)) throw python_error();
    op->grads.push_back({arg, result, bool(passthrough), op->saved_position(arg)});
  });
  op->program = program_of(*op, PyUnicode_AsUTF8(get(d, "program")));
  op->slow = Py_NewRef(get(d, "slow"));
  op->reference = Py_NewRef(get(d, "reference"));
  op->explain = Py_NewRef(get(d, "explain"));
  op->vjp = Py_NewRef(get(d, "vjp"));
  op->kept_like = Py_NewRef(get(d, "kept_like"));
  Owned made(callable(op.get()));
  all_ops().reserve(all_ops().size() + 1);
  register_kernels(op.get());
  all_ops().push_back(std::move(op));
  return Py_NewRef(made.object);
  END_HANDLE_TH_ERRORS
}

// setup(build, build_all, available, unbuildable): the Python functions this runtime calls, and
// what they raise where the reference must do.
PyObject* setup(PyObject*, PyObject* args) {
  PyObject *build, *build_all, *available, *unbuildable;
  if (!PyArg_ParseTuple(args, "OOOO", &build, &build_all, &available, &unbuildable)) return nullptr;
  python_side.build = Py_NewRef(build);
  python_side.build_all = Py_NewRef(build_all);
  python_side.available = Py_NewRef(available);
  python_side.unbuildable = Py_NewRef(unbuildable);
  KernelTable::get();  // its lock is known to fork() before there is a second thread
  Py_RETURN_NONE;
}

// shared_out_count(): how often work went to several of torch's threads (threads.h).
PyObject* shared_out_count(PyObject*, PyObject*) {
  return PyLong_FromLongLong(times_shared_out.load());
}

PyObject* launch_count(PyObject*, PyObject*) { return PyLong_FromLongLong(launches.load()); }

// poison_outputs(on): see allocate.h.
PyObject* set_poison_outputs(PyObject*, PyObject* on) {
  poison_outputs = PyObject_IsTrue(on);
  Py_RETURN_NONE;
}

// set_fp32_matmul(mode): 0 as torch's switch says, 1 split, 2 ieee, 3 tf32 (gemm.h).
PyObject* set_fp32_matmul(PyObject*, PyObject* mode) {
  fp32_matmul = Fp32Matmul(PyLong_AsLong(mode));
  Py_RETURN_NONE;
}

// forget_kernels(): the next call of each kernel asks Python again (for tuning).
PyObject* forget_kernels(PyObject*, PyObject*) {
  KernelTable::get().forget();
  Py_RETURN_NONE;
}

// remember_launches(on): must be on when the launch that bare_launch repeats is made.
PyObject* set_remember_launches(PyObject*, PyObject* on) {
  remember_launches = PyObject_IsTrue(on);
  Py_RETURN_NONE;
}

// bare_launch(like): what no call can be faster than, for the host-cost benchmark: one
// output allocation and one driver launch of the kernel this thread launched last.
PyObject* bare_launch(PyObject*, PyObject* like) {
  HANDLE_TH_ERRORS
  const at::Tensor& t = THPVariable_Unpack(like);
  LastLaunch& last = last_launch();
  TORCH_CHECK(last.kernel.function, "megafuse: nothing was launched on this thread yet");
  at::Tensor out = at::empty(t.sizes(), t.options().requires_grad(false));
  last.words[0] = reinterpret_cast<uint64_t>(out.mutable_data_ptr());
  void* params[] = {last.words.data()};
  const Driver& driver = Driver::get();
  driver.check(driver.LaunchKernel(last.kernel.function, last.grid_x, last.grid_y, 1,
                                   last.kernel.block, 1, 1, 0, last.stream, params, nullptr),
               "a kernel launch");
  return THPVariable_Wrap(out);
  END_HANDLE_TH_ERRORS
}

// library_multiplies(dtype): whether the CPU has instructions for products of it.
PyObject* asks_library_multiplies(PyObject*, PyObject* dtype) {
  HANDLE_TH_ERRORS
  return PyBool_FromLong(library_multiplies(graph::Reader{dtype}.dtype()));
  END_HANDLE_TH_ERRORS
}

PyMethodDef methods[] = {
    {"setup", setup, METH_VARARGS, nullptr},
    {"register_op", register_op, METH_O, nullptr},
    {"launch_count", launch_count, METH_NOARGS, nullptr},
    {"shared_out_count", shared_out_count, METH_NOARGS, nullptr},
    {"poison_outputs", set_poison_outputs, METH_O, nullptr},
    {"set_fp32_matmul", set_fp32_matmul, METH_O, nullptr},
    {"forget_kernels", forget_kernels, METH_NOARGS, nullptr},
    {"remember_launches", set_remember_launches, METH_O, nullptr},
    {"bare_launch", bare_launch, METH_O, nullptr},
    {"library_multiplies", asks_library_multiplies, METH_O, nullptr},
    {"optimizer_step", optimizer_step, METH_VARARGS, nullptr},
    {"optimizer_columns", optimizer_columns, METH_VARARGS, nullptr},
    {"optimizer_counts", optimizer_counts, METH_VARARGS, nullptr},
    {"graph_function", graph::new_function, METH_VARARGS, nullptr},
    {"graph_add", graph::add_variant, METH_VARARGS, nullptr},
    {"graph_guarded", graph::guarded, METH_O, nullptr},
    {"replay_key", graph::replay_key, METH_O, nullptr},
    {"replay_addresses", graph::replay_addresses, METH_VARARGS, nullptr},
    {"replay_fill", graph::replay_fill, METH_VARARGS, nullptr},
    {"replay_holders", graph::replay_holders, METH_O, nullptr},
    {"replay_sources", graph::replay_sources, METH_VARARGS, nullptr},
    {"replay_outputs", graph::replay_outputs, METH_VARARGS, nullptr},
    {"unchanged_new", graph::unchanged_new, METH_O, nullptr},
    {"unchanged_holds", graph::unchanged_holds, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                          "megafuse_host",
                          nullptr,
                          -1,
                          methods,
                          nullptr,
                          nullptr,
                          nullptr,
                          nullptr};

}  // namespace
}  // namespace megafuse

extern "C" __attribute__((visibility("default"))) PyObject* PyInit_megafuse_host() {
  megafuse::register_product();
  return PyModule_Create(&megafuse::definition);
}
