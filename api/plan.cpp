// Plan: a launcher, the sizes that it was asked for, and the engine that must outlive it.
#include "flashjit/plan.hpp"

#include <utility>

#include "api/plan_state.hpp"
#include "generator/render.hpp"

namespace flashjit {

Plan::Plan(std::shared_ptr<const PlanState> state) : state_(std::move(state)) {}

void Plan::forward(const ForwardArgs& args, Stream stream) const {
  state_->launcher->forward(args.shape.has_value() ? *args.shape : state_->shape, args, stream);
}

void Plan::backward(const BackwardArgs& args, Stream stream) const {
  state_->launcher->backward(args.shape.has_value() ? *args.shape : state_->shape, args, stream);
}

std::size_t Plan::workspace_bytes(const Shape& shape) const {
  return state_->launcher->workspace_bytes(shape);
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
  return flashjit::kernel_name(state_->launcher->plan().problem, state_->launcher->plan().schedule);
}
std::vector<KernelView> Plan::kernels() const {
  std::vector<KernelView> views;
  for (const api::LoadedKernel& kernel : state_->launcher->plan().kernels)
    views.push_back({.name = kernel.code->source.entry, .source = kernel.code->source.text});
  return views;
}
std::size_t Plan::held_bytes() const {
  return state_->launcher->held_bytes();
}

}  // namespace flashjit
