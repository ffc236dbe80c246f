// Holds shape inference against what running a graph gave.
#pragma once

#include <map>
#include <string>

#include "ir/graph.h"
#include "runtime/interpreter.h"

namespace quern::test {

// What is wrong, or nothing. Infers the graph's outputs three times:
// - with the types that the file states;
// - with every dimension of every input a symbol of its own, except that small integer inputs (shapes, axes)
// are
//   constants; the result, with the symbols' values put in, must be the shape that was computed;
// - with every input a constant.
// Wherever a dtype, rank, dimension or tracked element is known, it must be the one computed.
std::string check_inference(const Graph& graph, const runtime::NamedValues& inputs,
                            const runtime::NamedValues& outputs);

// Holds one value's inferred type and tracked elements, with the symbols' values put in, against its data.
// What is wrong, or nothing.
std::string check_value(const Value& value, const runtime::RuntimeValue& actual,
                        const std::map<std::string, Dim>& symbols);

}  // namespace quern::test
