//! Syntax tree to typed, checked instructions in a control flow graph.
