// From Python's description of a program (graph/program.py) to the program.
#pragma once

#include <torch/csrc/Dtype.h>
#include <torch/csrc/autograd/python_variable.h>

#include "core/python_side.h"
#include "graph/program.h"

namespace megafuse::graph {

// A borrowed Python object, read as what it must be.
struct Reader {
  PyObject* object;

  int64_t integer() const {
    const int64_t value = PyLong_AsLongLong(object);
    if (value == -1 && PyErr_Occurred()) throw python_error();
    return value;
  }
  int place() const { return int(integer()); }
  bool flag() const { return object == Py_True; }
  bool is_none() const { return object == Py_None; }
  std::string text() const {
    const char* utf8 = PyUnicode_AsUTF8(object);
    if (!utf8) throw python_error();
    return utf8;
  }
  at::ScalarType dtype() const {
    TORCH_CHECK(THPDtype_Check(object), "megafuse: a dtype was expected");
    return reinterpret_cast<THPDtype*>(object)->scalar_type;
  }
  const at::Tensor& tensor() const {
    TORCH_CHECK(THPVariable_Check(object), "megafuse: a tensor was expected");
    return THPVariable_Unpack(object);
  }
  // Of a tuple or list.
  int size() const { return int(PySequence_Fast_GET_SIZE(object)); }
  Reader operator[](int i) const { return {PySequence_Fast_GET_ITEM(object, i)}; }
  // Of a dict.
  Reader operator[](const char* name) const {
    PyObject* item = PyDict_GetItemString(object, name);
    TORCH_CHECK(item, "megafuse: a program's description lacks ", name);
    return {item};
  }
  Places places() const {
    Places found;
    for (int i = 0; i < size(); ++i) found.push_back((*this)[i].place());
    return found;
  }
  template <class Each>
  auto all(const Each& each) const {
    std::vector<decltype(each(*this))> found;
    for (int i = 0; i < size(); ++i) found.push_back(each((*this)[i]));
    return found;
  }
};

inline Slot parse_constant(Reader r) {
  if (PyFloat_Check(r.object)) return {.real = PyFloat_AS_DOUBLE(r.object)};
  return {.integer = r.integer()};
}

inline Instruction parse_instruction(Reader r) {
  const int64_t opcode = r[0].integer();
  TORCH_CHECK(opcode >= 0 && opcode < int(Opcode::kCount), "megafuse: no such opcode: ", opcode);
  return {Opcode(opcode), r[1].place(), r[2].place()};
}

// (buffer, sizes, strides, offset); sizes None: the whole.
inline View parse_view(Reader r) {
  if (r[1].is_none()) return {r[0].place(), true, {}, {}, -1};
  return {r[0].place(), false, r[1].places(), r[2].places(), r[3].place()};
}

// Programs that have the same functor share its kernels: layers repeat.
inline std::shared_ptr<OwnedFunctor> shared_functor(const std::string& name) {
  static Mutex mutex;
  static auto* const known = new std::unordered_map<std::string, std::weak_ptr<OwnedFunctor>>;
  std::unique_lock<Mutex> lock(mutex);
  std::weak_ptr<OwnedFunctor>& found = (*known)[name];
  std::shared_ptr<OwnedFunctor> functor = found.lock();
  if (!functor) found = functor = std::make_shared<OwnedFunctor>(name);
  return functor;
}

inline KernelStep parse_kernel(Reader r) {
  KernelStep step;
  step.functor = shared_functor(r["functor"].text());
  step.row_wise = r["row_wise"].flag();
  step.outputs = r["outputs"].place();
  step.shape = r["shape"].places();
  step.operands = r["operands"].all([](Reader o) {
    return KernelStep::Walked{o[0].place(),         o[1].dtype(), o[2].text()[0],
                              int8_t(o[3].place()), o[4].place(), o[5].places(),
                              o[6].dtype(),         o[7].place(), o[8].place()};
  });
  step.words =
      r["words"].all([](Reader w) { return KernelStep::Word{w[0].place(), w[1].place()}; });
  return step;
}

// A Python constant as the schema declares it.
inline c10::IValue parse_value(PyObject* object, const c10::TypePtr& type) {
  if (object == Py_None) return c10::IValue();
  if (const auto optional = type->cast<c10::OptionalType>())
    return parse_value(object, optional->getElementType());
  if (PyBool_Check(object)) {
    if (type->kind() == c10::TypeKind::NumberType) return c10::Scalar(object == Py_True);
    return object == Py_True;
  }
  if (PyUnicode_Check(object)) {
    const std::string text = Reader{object}.text();
    if (type->kind() == c10::TypeKind::DeviceObjType) return c10::Device(text);
    return text;
  }
  if (THPDtype_Check(object)) return int64_t(Reader{object}.dtype());
  if (PyFloat_Check(object)) return PyFloat_AS_DOUBLE(object);
  if (PyComplex_Check(object))
    return c10::complex<double>(PyComplex_RealAsDouble(object), PyComplex_ImagAsDouble(object));
  const int64_t integer = Reader{object}.integer();
  return type->kind() == c10::TypeKind::FloatType ? c10::IValue(double(integer))
                                                  : c10::IValue(integer);
}

// ("constant", value), ("integer", slot), ("real", slot), ("tensor", view), ("list", arguments)
inline Argument parse_argument(Reader r, const c10::TypePtr& type) {
  Argument made;
  const std::string kind = r[0].text();
  const auto given = type->cast<c10::OptionalType>();
  made.as_tensor = (given ? given->getElementType() : type)->kind() == c10::TypeKind::TensorType;
  if (const auto optional = type->cast<c10::OptionalType>(); optional && kind == "list")
    return parse_argument(r, optional->getElementType());
  if (kind == "constant") {
    made.constant = parse_value(r[1].object, type);
    if (made.constant.isNone() && type->kind() == c10::TypeKind::TensorType)
      made.constant = at::Tensor();  // torch's own schemas have some that may be undefined
  } else if (kind == "integer") {
    made.kind = Argument::Kind::kInteger;
    made.slot = r[1].place();
  } else if (kind == "real") {
    made.kind = Argument::Kind::kReal;
    made.slot = r[1].place();
  } else if (kind == "tensor") {
    made.kind = Argument::Kind::kTensor;
    made.view = parse_view(r[1]);
  } else {
    const auto list = type->cast<c10::ListType>();
    TORCH_CHECK(kind == "list" && list, "megafuse: no argument of an operation is ", kind);
    made.kind = Argument::Kind::kList;
    made.type = list->getElementType();
    made.items = r[1].all([&](Reader item) { return parse_argument(item, made.type); });
  }
  return made;
}

// (buffer, dtype, sizes, strides); (-1,): none.
inline std::pair<int, BufferType> parse_buffer(Reader r) {
  if (r[0].place() < 0) return {-1, {at::kFloat, {}, {}}};
  return {r[0].place(), {r[1].dtype(), r[2].places(), r[3].places()}};
}

inline CallStep parse_call(Reader r) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(r["name"].text().c_str(),
                                                                 r["overload"].text().c_str());
  CallStep step{op, {}, r["writes"].all(parse_buffer)};
  const auto& declared = op.schema().arguments();
  const Reader given = r["arguments"];
  TORCH_CHECK(size_t(given.size()) == declared.size(), "megafuse: ", op.schema(), " takes ",
              declared.size(), " arguments");
  for (size_t i = 0; i < declared.size(); ++i) {
    step.arguments.push_back(parse_argument(given[int(i)], declared[i].type()));
    step.arguments.back().is_mask = declared[i].name() == "attn_bias";
  }
  return step;
}

inline decltype(Step::what) parse_what(Reader r) {
  const std::string kind = r["kind"].text();
  if (kind == "kernel") return parse_kernel(r);
  if (kind == "draw") return DrawStep{r["buffer"].place()};
  return parse_call(r);
}

inline Step parse_step(Reader r) {
  return {parse_what(r), r["allocates"].all(parse_buffer), r["frees"].places()};
}

// ("tensor", view, aliases), ("integer", slot), ("real", slot), ("none",)
inline Output parse_output(Reader r) {
  const std::string kind = r[0].text();
  if (kind == "tensor") return {Output::Kind::kTensor, parse_view(r[1]), -1, r[2].flag()};
  if (kind == "none") return {};
  return {kind == "real" ? Output::Kind::kReal : Output::Kind::kInteger, {}, r[1].place()};
}

inline bool are_same(const Output& one, const Output& other) {
  return one.kind == Output::Kind::kTensor && other.kind == one.kind && !one.aliases &&
         one.view == other.view;
}

inline Program parse_program(Reader r) {
  Program program;
  program.name = r["name"].text();
  program.device = c10::Device(r["device"].text());
  program.code.instructions = r["code"].all(parse_instruction);
  program.code.constants = r["numbers"].all(parse_constant);
  program.guards = r["guards"].places();
  program.buffers = r["buffers"].place();
  program.arguments = r["arguments"].places();
  program.constants =
      r["constants"].all([](Reader c) { return std::pair{c[0].place(), c[1].tensor()}; });
  program.steps = r["steps"].all(parse_step);
  program.outputs = r["outputs"].all(parse_output);
  for (size_t i = 0; i < program.outputs.size(); ++i)
    for (size_t j = 0; j < i && program.outputs[i].same_as < 0; ++j)
      if (are_same(program.outputs[i], program.outputs[j])) program.outputs[i].same_as = int(j);
  return program;
}

}  // namespace megafuse::graph
