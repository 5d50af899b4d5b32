"""The watch sees a training's tensors, and the training does not notice."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch
from torch.nn.modules import module as modules

from stepscope.capture.record.census import TensorWatch


class Seen:
    def __init__(self):
        self.found = []
        self.watch = TensorWatch(lambda kind, places: self.found.append((kind, places)))

    def names(self, kind):
        return [place[4] for one, places in self.found if one == kind for place in places]

    def sizes(self, kind):
        return [place[2] for one, places in self.found if one == kind for place in places]


@pytest.fixture
def seen():
    made = Seen()
    made.watch.listen()
    yield made
    made.watch.leave()
    assert not modules._global_forward_hooks
    assert not modules._global_forward_pre_hooks


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(8, 16)
        self.second = torch.nn.Linear(16, 4)
        self.register_buffer("scale", torch.ones(3))

    def forward(self, x, mask=None):
        h = self.first(x).relu()
        return self.second(h) if mask is None else self.second(h) * mask.sum()


def test_each_kind_is_seen_with_its_name(seen):
    net = Net()
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.randn(5, 8), mask=torch.ones(7)).sum().backward()
    optimizer.step()
    names = [name for name, _ in net.named_parameters()]
    assert seen.names("parameter")[: len(names)] == names
    assert seen.sizes("parameter")[: len(names)] == [p.nbytes for p in net.parameters()]
    assert seen.names("buffer") == ["scale"]
    assert seen.names("gradient") == names
    assert set(seen.sizes("input")) == {5 * 8 * 4, 7 * 4}
    assert "first" in seen.names("activation")
    state = seen.names("optimizer_state")
    assert "second.weight.exp_avg_sq" in state
    total = sum(v.nbytes for p in net.parameters() for v in optimizer.state[p].values())
    assert sum(seen.sizes("optimizer_state")) == total


def test_gradients_are_the_same_to_the_last_bit(seen):
    def gradients(watched):
        torch.manual_seed(1)
        net = Net()
        if not watched:
            seen.watch.leave()
        x = torch.randn(5, 8, requires_grad=True)
        loss = net(x).square().sum()
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        slope.square().sum().backward()  # through the graph of the gradient
        return [p.grad for p in net.parameters()]

    with_watch, without = gradients(True), gradients(False)
    assert all(torch.equal(a, b) for a, b in zip(with_watch, without, strict=True))


def test_checkpoints_and_hooks_of_the_users_own_work(seen):
    from torch.autograd.graph import saved_tensors_hooks
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(Net):
        def forward(self, x):
            with saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
                h = self.first(x)
            return checkpoint(self.second, h.relu(), use_reentrant=False)

    net = Checkpointed()
    net(torch.randn(5, 8)).sum().backward()
    assert all(p.grad is not None for p in net.parameters())


def test_hooks_of_the_users_own_around_a_module_are_not_replaced(seen):
    from torch.autograd.graph import saved_tensors_hooks

    packed = []
    with saved_tensors_hooks(lambda t: packed.append(t.shape) or t.clone(), lambda t: t):
        Net()(torch.randn(5, 8)).sum().backward()
    assert packed
    assert seen.names("activation") == []


def test_functions_that_refuse_hooks_work(seen):
    class Functional(Net):
        def forward(self, x):
            slope = torch.func.grad(lambda y: (y * y).sum())(x)
            return self.second(self.first(slope)) + torch.vmap(lambda y: y * 2)(x)[:, :4]

    net = Functional()
    x = torch.ones(5, 8)
    net(x).sum().backward()
    assert "second" in seen.names("activation")
    assert seen.watch.problem == ""
    original = torch.autograd.graph.disable_saved_tensors_hooks
    seen.watch.leave()
    assert torch.autograd.graph.disable_saved_tensors_hooks is not original


def test_what_is_recomputed_in_the_backward_pass_is_no_input(seen):
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(Net):
        def forward(self, x):
            return checkpoint(self.second, self.first(x), use_reentrant=False)

    net = Checkpointed()
    net(torch.randn(5, 8)).sum().backward()
    assert seen.sizes("input") == [5 * 8 * 4]
    assert set(seen.names("parameter")) == {name for name, _ in net.named_parameters()}


def test_what_another_module_made_is_no_input(seen):
    net = Net()
    net.second(net.first(torch.randn(5, 8)))
    assert seen.sizes("input") == [5 * 8 * 4]


def test_an_exception_in_the_forward_pass_leaves_nothing_behind(seen):
    class Broken(Net):
        def forward(self, x):
            self.first(x)
            raise ValueError("the user's own")

    with pytest.raises(ValueError, match="the user's own"):
        Broken()(torch.randn(5, 8))
    before = len(seen.found)
    x = torch.randn(3, 3, requires_grad=True)
    (x @ x).sum()  # outside of modules: nothing is saved through our hooks
    assert len(seen.found) == before
    Net()(torch.randn(5, 8))
    assert "first" in seen.names("activation")


def test_no_tensor_is_kept(seen):
    net = Net()
    x = torch.randn(5, 8)
    gone = weakref.ref(x)
    output = net(x)
    activation = weakref.ref(output)
    del x, output
    gc.collect()
    assert gone() is None
    assert activation() is None


def test_other_threads_do_not_count(seen):
    thread = threading.Thread(target=lambda: Net()(torch.randn(5, 8)))
    thread.start()
    thread.join()
    assert seen.found == []


def test_a_failure_ends_the_watch_and_not_the_training(caplog):
    def broken(kind, places):
        raise RuntimeError("a full disk")

    watch = TensorWatch(broken)
    watch.listen()
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(torch.randn(5, 8)).sum().backward()
    optimizer.step()
    assert not watch.is_listening
    assert watch.problem == "RuntimeError: a full disk"
    assert "the memory census ends early" in caplog.text
    watch.listen()
    assert not watch.is_listening
    assert not modules._global_forward_hooks


def test_odd_tensors_are_left_out(seen):
    class Odd(torch.nn.Module):
        def forward(self, *things):
            return things[0].to_dense().sum()

    sparse = torch.eye(3).to_sparse()
    Odd()(sparse, torch.empty(0), torch.empty(3, device="meta"), [{"a": (torch.ones(2),)}], "text")
    assert seen.sizes("input") == [2 * 4]
    assert seen.watch.problem == ""
