// SPDX-License-Identifier: BSD-3-Clause
// Node: the syntax tree of a template. parser.h makes it, evaluator.h renders it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "torchette/llm/text/jinja/value.h"

namespace torchette::extension::llm::jinja {

/// The kind of a node, with its children. A child in brackets may be null or absent.
enum class Op : uint8_t {
  // expressions
  Constant,   // value
  Name,       // name
  Attribute,  // name; object
  Item,       // object, index
  Slice,      // object, [first], [last], [step]
  List,       // items
  Tuple,      // items
  Dict,       // key, value, key, value, ...
  Call,       // callee, arguments; names: keywords of the last arguments
  Method,     // name; object, arguments; names as in Call
  Filter,     // name; value, arguments; names as in Call
  Test,       // name; value, arguments; names as in Call
  Not,        // operand
  Negate,     // operand
  And,        // left, right; so are all operators below
  Or,
  Conditional,  // condition, value, [other value]
  Capture,      // block: its text
  Caller,       // as Macro: the macro of a call block
  Add,
  Subtract,
  Multiply,
  Divide,
  FloorDivide,
  Modulo,
  Power,
  Concat,
  Equal,
  NotEqual,
  Less,
  LessEqual,
  Greater,
  GreaterEqual,
  In,
  // statements
  Text,    // name: the text
  Output,  // expression
  For,     // names: loop variables; value: whether it is recursive; iterable, [condition], body, [body
           // without items]
  If,      // condition, block, condition, block, ..., [block]
  Set,     // name, names: the attribute of a namespace; expression
  SetAll,  // names; expression, a list with an item for each name
  Block,   // statements
  With,    // names; an expression for each, body
  Macro,  // name; names: parameters; value: whether it uses `caller`; body, [default], one for each parameter
  Break,
  Continue
};

struct Node {
  Op op = Op::Constant;
  int line = 0;
  Value value;
  std::string name;
  std::vector<std::string> names;
  std::vector<std::unique_ptr<Node>> children;
};
using NodePtr = std::unique_ptr<Node>;

}  // namespace torchette::extension::llm::jinja
