"""What Dynamo's guards read, so that they need not run again while nothing of it has changed.

A captured graph has some thousand guards, a tree of them: nearly all are about the model and the
modules of Python that it uses, and 12 layers take 0.6 ms. They are pure: if what they read is the
same, so is what they say. So we walk through the tree once, when it has just passed, and note what
it reads (`Seen`). What we cannot note, properties for one, and all that is about arguments and
about torch's state, stays a tree of guards, a small one, and runs at each call.

In such a tree a node stands for an object, has guards on that very object (leaves), and reaches
other objects by accessors: an attribute, an item. We follow accessors only where we know what
they read.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from megafuse.compiler.seen import Seen, is_plain

MODEL, GIVEN = "L['model']", ("L['args']", "L['kwargs']")  # as Dynamo calls what `call` has
# Guards on an object that no change of it can make fail: who it is, or the value of a constant.
_IDENTITY = {"ID_MATCH", "NONE_MATCH", "NOT_NONE", "TRUE_MATCH", "FALSE_MATCH", "OBJECT_ALIASING"}
_ITEMS = {"DICT_LENGTH", "DICT_CONTAINS", "LENGTH_CHECK", "MAPPING_KEYS_MATCH", "DICT_VERSION"}
_CONSTANTS = (
    *(bool, int, float, complex, str, bytes, type(None), type, types.CodeType),
    *(types.BuiltinFunctionType, torch.dtype, torch.device, torch.layout, torch.memory_format),
)
_FIELDS = {
    "CodeGuardAccessor": "__code__",
    "ClosureGuardAccessor": "__closure__",
    "FuncDefaultsGuardAccessor": "__defaults__",
    "FuncKwDefaultsGuardAccessor": "__kwdefaults__",
}
_FIXED = {"__func__", "__self__", "fget", "fset", "fdel"}  # of bound methods and properties
_MODULE_GETATTR = nn.Module.__getattr__
_HEAP = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class that Python code made
_MISSING = object()


class Refused(Exception):
    """These guards cannot be told apart into what is read of the model and the rest."""


@dataclass
class Unchanged:
    """Guards that passed: what they read of the model, and those that still have to run."""

    seen: Seen
    rest: Any  # a RootGuardManager
    running: set[str] = field(default_factory=set)  # what `rest` is about, for tests


def unchanged(root: Any, scope: dict[str, Any], seen: Seen) -> Unchanged:
    """Of a tree of guards that has just passed, with `scope` as its variables. What it reads is
    added to `seen`."""
    walk = _Walk(scope, seen)
    for node in _nodes(root):
        walk.check_relations(node)
    walk.kept.add(root.get_source())
    for accessor, child in zip(root.get_accessors(), root.get_child_managers(), strict=True):
        walk.root(accessor, child)
    rest = root.clone_manager(lambda node: node.get_source() in walk.kept)
    if rest is None or not seen.freeze(modes=True):
        raise Refused
    return Unchanged(seen, rest, walk.kept)


def _children(node: Any) -> list[Any]:
    found = list(node.get_child_managers())
    if hasattr(node, "get_key_value_managers"):
        pairs = node.get_key_value_managers().values()
        found += [each for pair in pairs for each in pair if each is not None]
    return found


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    for child in _children(node):
        yield from _nodes(child)


class _Walk:
    def __init__(self, scope: dict[str, Any], seen: Seen) -> None:
        self.scope, self.seen = scope, seen
        self.kept: set[str] = set()  # sources of nodes that run at each call

    def check_relations(self, node: Any) -> None:
        """Guards between objects: half of one in the rest would pass always."""
        for guard in node.get_leaf_guards():
            if not isinstance(guard, torch._C._dynamo.guards.RelationalGuard):
                continue
            kind, given = type(guard).__name__, node.get_source().startswith(GIVEN)
            if kind not in ("NO_TENSOR_ALIASING", "OBJECT_ALIASING"):
                raise Refused
            if kind == "OBJECT_ALIASING" and given:  # an argument that is one of the parameters
                raise Refused

    def root(self, accessor: Any, child: Any) -> None:
        if child.get_source() == MODEL:
            self.covers(child, self.scope["model"])
        elif _kind(accessor)[0] == "GlobalsGuardAccessor":
            self.covers(child, self.scope["globals"])
        else:
            self.keep(child)

    def keep(self, node: Any) -> None:
        self.kept.update(each.get_source() for each in _nodes(node))

    def covers(self, node: Any, value: Any) -> bool:
        """Whether nothing at or below this node has to run at each call."""
        if type(value) is not node.get_type_of_guarded_value() and node.get_leaf_guards():
            raise Refused  # we have come to another object than Dynamo
        covered = all(self.leaf(type(g).__name__, value) for g in node.get_leaf_guards())
        if hasattr(node, "get_key_value_managers"):
            self.seen.whole(value)
            items = list(value.items())
            for at, pair in node.get_key_value_managers().items():
                found = [self.covers(n, v) for n, v in zip(pair, items[at], strict=True) if n]
                covered &= all(found)
        for accessor, child in zip(node.get_accessors(), node.get_child_managers(), strict=True):
            other = self.follow(value, accessor, child)
            if other is _MISSING:
                self.keep(child)
                covered = False
            else:
                covered &= self.covers(child, other)
        if not covered:
            self.kept.add(node.get_source())
        return covered

    # ---- guards on an object

    def leaf(self, kind: str, value: Any) -> bool:
        """Notes what such a guard reads; False where we do not know."""
        if kind in _IDENTITY:
            return True
        if kind == "TYPE_MATCH":
            return self._class(value)
        if kind == "EQUALS_MATCH":
            return _is_constant(value)
        if kind in _ITEMS:
            return self._items(value)
        if kind in ("TENSOR_MATCH", "DIMENSION_DYNAMIC_MARKING_GUARD"):
            self.seen.tensor(value)
            return is_plain(value)
        if kind == "NO_HASATTR":
            return self._all_attributes(value)
        return False

    def _class(self, value: Any) -> bool:
        if type(value).__flags__ & _HEAP and not isinstance(value, (torch.Tensor, type)):
            self.seen.layout(value)  # others cannot become another class's
        return True

    def _items(self, value: Any) -> bool:
        if isinstance(value, dict):
            self.seen.whole(value)
        elif type(value) is list:
            self.seen.list(value)
        return isinstance(value, (dict, tuple)) or type(value) is list

    def _all_attributes(self, value: Any) -> bool:
        """Also that there is none of some name. Not those that its class computes."""
        kind = type(value)
        own = getattr(kind, "__getattr__", None)
        if not hasattr(value, "__dict__") or own not in (None, _MODULE_GETATTR):
            return False
        if isinstance(value, nn.Module):
            for name in ("_parameters", "_buffers", "_modules"):
                self.seen.whole(value.__dict__[name])
        if _maps_names(kind):
            self.seen.whole(value.attribute_map)
        elif _in_classes(kind, "__getattribute__") is not vars(object)["__getattribute__"]:
            return False
        self.seen.layout(value)
        self.seen.whole(value.__dict__)
        self.seen.attributes(kind)
        return True

    # ---- ways from an object to another

    def follow(self, parent: Any, accessor: Any, child: Any) -> Any:
        """The object at the other end; notes what it takes to come to the same one again. _MISSING
        where we do not know."""
        kind, key = _kind(accessor)
        if kind in ("DictGetItemGuardAccessor", "GetItemGuardAccessor"):
            return self._item(parent, key)
        if kind == "GetGenericDictGuardAccessor":
            self.seen.layout(parent)
            return parent.__dict__
        if kind == "GetAttrGuardAccessor":
            name, bare = accessor.get_attr_name(), not _children(child)
            return self._attribute(parent, name, bare and not child.get_leaf_guards())
        if kind == "TypeGuardAccessor":
            return type(parent) if self._class(parent) else _MISSING
        if kind in ("TypeDictGuardAccessor", "TypeMROGuardAccessor"):
            self.seen.attributes(parent)
            return dict(vars(parent)) if kind.startswith("TypeDict") else parent.__mro__
        if kind in _FIELDS:
            return self._field(parent, _FIELDS[kind])
        if kind in ("TupleGetItemGuardAccessor", "ListGetItemGuardAccessor"):
            return self._item(parent, key)
        return _MISSING

    def _item(self, parent: Any, key: Any) -> Any:
        if isinstance(parent, dict) and key in parent:
            self.seen.item(parent, key)
            return dict.__getitem__(parent, key)
        if type(parent) in (tuple, list) and type(key) is int and self._items(parent):
            return parent[key]
        return _MISSING

    def _attribute(self, parent: Any, name: str, bare: bool) -> Any:
        """`bare`: no guard is about it, but that it is there."""
        if isinstance(parent, types.ModuleType):
            return self._item(vars(parent), name)
        if isinstance(parent, type):
            return self._of_class(parent, name)
        if isinstance(parent, types.FunctionType):
            return self._field(parent, name)
        if isinstance(parent, types.CellType) and name == "cell_contents":
            self.seen.cell(parent)
            return parent.cell_contents
        if isinstance(parent, (types.MethodType, property)) and name in _FIXED:
            return getattr(parent, name)
        if name == "__class__" and type(parent).__class__ is type:
            return type(parent) if self._class(parent) else _MISSING
        if not self._all_attributes(parent):
            return _MISSING
        if _maps_names(type(parent)):
            name = parent.attribute_map.get(name, name)
        there = bare and _in_classes(type(parent), name) is not _MISSING
        return getattr(parent, name) if there or _is_stored(parent, name) else _MISSING

    def _field(self, parent: Any, name: str) -> Any:
        if not isinstance(parent, types.FunctionType) or name not in _FIELDS.values():
            return _MISSING
        self.seen.function(parent)
        return getattr(parent, name)

    def _of_class(self, parent: type, name: str) -> Any:
        meta = type(parent)
        plain = meta.__getattribute__ is type.__getattribute__ and not hasattr(meta, "__getattr__")
        if not plain or hasattr(type(_in_classes(meta, name)), "__set__"):
            return _MISSING  # such as __dict__ and __mro__
        self.seen.attributes(parent)
        return _MISSING if _in_classes(parent, name) is _MISSING else getattr(parent, name)


def _kind(accessor: Any) -> tuple[str, Any]:
    """Its name and, where that can be read, the key: both from TupleGetItemGuardAccessor(3)."""
    kind, _, rest = str(accessor.repr()).partition("(")
    try:
        return kind, ast.literal_eval(rest.removesuffix(")"))
    except (SyntaxError, ValueError):
        return kind, _MISSING


def _is_stored(parent: Any, name: str) -> bool:
    """Whether getattr takes what is in the object's dict or its class's, and computes nothing."""
    of_class = _in_classes(type(parent), name)
    if name in parent.__dict__:
        return not hasattr(type(of_class), "__set__")
    method = isinstance(of_class, (types.FunctionType, staticmethod, classmethod))
    return of_class is not _MISSING and (method or not hasattr(type(of_class), "__get__"))


def _in_classes(kind: type, name: str) -> Any:
    """As it lies in the class or one that it inherits from."""
    return next((vars(each)[name] for each in kind.__mro__ if name in vars(each)), _MISSING)


def _maps_names(kind: type) -> bool:
    """Whether it is one of transformers' configurations, which have other names for attributes."""
    found = kind.__getattribute__
    return getattr(found, "__module__", None) == "transformers.configuration_utils"


def _is_constant(value: Any) -> bool:
    if isinstance(value, (tuple, frozenset)):
        return all(map(_is_constant, value))
    return isinstance(value, _CONSTANTS)
