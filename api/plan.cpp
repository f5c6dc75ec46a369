// Plan: a launcher, the sizes it was asked for, and the engine that must not go before it.
#include "flashjit/plan.hpp"

#include <utility>

#include "api/plan_state.hpp"

namespace flashjit {

Plan::Plan(std::shared_ptr<const PlanState> state) : state_(std::move(state)) {}

void Plan::forward(const ForwardArgs& args, Stream stream) const {
  state_->launcher->forward(args.shape.has_value() ? *args.shape : state_->shape, args, stream);
}

const Problem& Plan::problem() const {
  return state_->problem;
}
const Shape& Plan::shape() const {
  return state_->shape;
}
const Origin& Plan::origin() const {
  return state_->origin;
}
std::string Plan::kernel_name() const {
  return state_->launcher->kernel().code->source.entry;
}
const std::string& Plan::source() const {
  return state_->launcher->kernel().code->source.text;
}
std::size_t Plan::workspace_bytes() const {
  return state_->launcher->workspace_bytes();
}

}  // namespace flashjit
