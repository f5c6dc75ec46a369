// What a record says of a shape of its bucket whose rows fill tiles otherwise than those that were timed.
#pragma once

#include "autotune/wisdom.hpp"

namespace flashjit::autotune {

// The record's schedule; or, where its tiles compute so many more rows past the end of `shape` than of the
// shape that was timed that another one of the record's family would have won, that one.
Schedule carry_over(const WisdomRecord& record, const Problem& problem, const Shape& shape,
                    const Target& target);

}  // namespace flashjit::autotune
