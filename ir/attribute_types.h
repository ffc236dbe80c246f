// The types of the attributes of the operators in the schema table.
#pragma once

#include "ir/graph.h"

namespace quern {

// Throws Error{InvalidModel} naming the first attribute of another type than the operator's specification
// gives it, with both types. Attributes that the table does not know pass, as do nodes of unknown operators.
void check_attribute_types(const Node& node);

}  // namespace quern
