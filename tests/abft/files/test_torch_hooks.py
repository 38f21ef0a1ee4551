"""State dicts and distributed checkpoints of torch that carry the exact sums of their tensors."""

import warnings

import pytest

from tsapps.apps.abft.at_rest.verdict import AmbiguousError
from tsapps.apps.abft.files.state_dict import protect_state_dict

torch = pytest.importorskip("torch")
dcp = pytest.importorskip("torch.distributed.checkpoint")


def some_module():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(30, 20), torch.nn.BatchNorm1d(20), torch.nn.Linear(20, 5).bfloat16())


def flip(tensor, *elements):
    """Flip a bit of some elements of a tensor."""
    content = tensor.view(torch.uint8).reshape(-1)
    for element in elements:
        content[element * tensor.element_size()] ^= 8


def test_a_state_dict_is_restored(tmp_path):
    module = protect_state_dict(some_module())
    torch.save(module.state_dict(), tmp_path / "x.pt")
    state = torch.load(tmp_path / "x.pt", weights_only=True)
    other = protect_state_dict(some_module())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other.load_state_dict(state)
    flip(state["0.weight"], 7)
    with pytest.warns(UserWarning, match=r"0\.weight: corrupted in 1 word of 32 bits"):
        other.load_state_dict(state)
    assert all(
        torch.equal(a, b) for a, b in zip(module.state_dict().values(), other.state_dict().values(), strict=True)
    )
    flip(state["2.weight"], *range(0, 100, 2))
    with pytest.raises(AmbiguousError, match=r"2\.weight: more was corrupted"):
        other.load_state_dict(state)


def test_a_state_dict_without_sums_is_loaded():
    state = some_module().state_dict()
    protect_state_dict(protect_state_dict(some_module())).load_state_dict(state)


def test_sums_of_a_submodule():
    module = some_module()
    protect_state_dict(module[0])
    state = module.state_dict()
    flip(state["0.bias"], 3)
    with pytest.warns(UserWarning, match=r"0\.bias"):
        module.load_state_dict(state)


@pytest.fixture
def planners():
    from tsapps.apps.abft.files import dcp as module

    return module.ProtectedSavePlanner, module.ProtectedLoadPlanner


def saved(path, planner):
    tensors = {"w": torch.arange(3000.0).reshape(50, 60), "half": torch.ones(7, dtype=torch.bfloat16)}
    state = tensors | {"nested": {"scalar": torch.tensor(3), "empty": torch.empty(0)}, "step": 5}
    dcp.save(state, checkpoint_id=path, planner=planner())
    return tensors


def test_a_checkpoint_is_verified(tmp_path, planners):
    save, load = planners
    tensors = saved(tmp_path, save)
    state = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    planner = load()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", module="torch")
        dcp.load(state, checkpoint_id=tmp_path, planner=planner)
    assert all(torch.equal(state[name], tensor) for name, tensor in tensors.items())
    assert planner.unverified == []


def test_a_corrupted_checkpoint_is_restored_or_refused(tmp_path, planners):
    save, load = planners
    tensors = saved(tmp_path, save)
    (path,) = tmp_path.glob("*.distcp")
    content = bytearray(path.read_bytes())
    place = content.index(tensors["w"].numpy().tobytes())
    state = {"w": torch.zeros(50, 60)}
    content[place + 400] ^= 1
    path.write_bytes(content)
    with pytest.warns(UserWarning, match="w: corrupted in 1 word"):
        dcp.load(state, checkpoint_id=tmp_path, planner=load())
    assert torch.equal(state["w"], tensors["w"])
    content[place : place + 12_000] = bytes(12_000)
    path.write_bytes(content)
    with pytest.raises((AmbiguousError, dcp.api.CheckpointException), match="more was corrupted"):
        dcp.load(state, checkpoint_id=tmp_path, planner=load())


def test_a_checkpoint_without_sums_is_loaded(tmp_path, planners):
    _, load = planners
    dcp.save({"w": torch.ones(3)}, checkpoint_id=tmp_path)
    planner, state = load(), {"w": torch.zeros(3)}
    dcp.load(state, checkpoint_id=tmp_path, planner=planner)
    assert planner.unverified == ["w"]
