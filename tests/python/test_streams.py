"""The mapping from torch's streams to wrapped streams, with a simulated GPU."""
import itertools
import types

import pytest

torch = pytest.importorskip("torch")

import sluice_moe  # noqa: E402
from sluice_moe import capi, devices  # noqa: E402


@pytest.fixture
def pretended(monkeypatch):
    """An open Device of a simulated GPU; `calls` lists the calls of the C ABI, `now` is torch's current stream."""
    numbers, told = itertools.count(1000), types.SimpleNamespace(calls=[], now=0, capturing=False)

    def call(name, *arguments):
        told.calls.append(name)
        if name == "sluice_open":
            arguments[1].value = 7
        elif name == "sluice_stream_wrap":
            arguments[2].native = next(numbers)
        elif name == "sluice_stream_retarget":
            told.target = (arguments[1].native, arguments[2])

    monkeypatch.setattr(capi, "call", call)
    monkeypatch.setattr(devices, "is_capturing", lambda: told.capturing)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: told.now, raising=False)
    told.device = devices.Device(torch.device("cuda", 0))
    told.calls.clear()
    return told


def test_streams_made_ahead_are_given_out_once(pretended):
    device, found = pretended.device, {}
    pretended.capturing = True  # taking a prepared stream allocates nothing
    for raw in range(devices.STREAMS_AHEAD):
        pretended.now = raw
        found[raw] = device.stream()
        assert pretended.target == (found[raw], raw or None)  # torch's default stream is null
    assert len(set(found.values())) == devices.STREAMS_AHEAD
    assert pretended.calls == ["sluice_stream_retarget"] * devices.STREAMS_AHEAD
    for raw in reversed(range(devices.STREAMS_AHEAD)):
        pretended.now = raw
        assert device.stream() == found[raw]
    assert len(pretended.calls) == devices.STREAMS_AHEAD


def test_more_streams_are_made_outside_of_a_capture_alone(pretended):
    for pretended.now in range(devices.STREAMS_AHEAD):
        pretended.device.stream()
    pretended.now, pretended.capturing = 99, True
    known = f"one of the {devices.STREAMS_AHEAD} streams of cuda:0 that were used before"
    with pytest.raises(sluice_moe.Unsupported, match=f"{known}, found a new one inside a captured region"):
        pretended.device.stream()
    assert "sluice_stream_wrap" not in pretended.calls
    pretended.capturing = False
    assert pretended.device.stream()
    assert pretended.calls.count("sluice_stream_wrap") == devices.STREAMS_AHEAD
    pretended.capturing = True
    for pretended.now in range(100, 100 + devices.STREAMS_AHEAD - 1):
        pretended.device.stream()


def test_a_stream_that_is_refused_stays_in_the_pool(pretended, monkeypatch):
    call = capi.call

    def refuse(name, *arguments):
        if name == "sluice_stream_retarget":
            raise sluice_moe.DeviceFault("no")
        call(name, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(capi, "call", refuse)
        with pytest.raises(sluice_moe.DeviceFault):
            pretended.device.stream()
    assert len(pretended.device._spare_streams) == devices.STREAMS_AHEAD and pretended.device.stream()


def test_a_device_is_not_opened_inside_a_capture(pretended, monkeypatch):
    pretended.capturing = True
    monkeypatch.setattr(devices, "_opened", {})
    with pytest.raises(sluice_moe.Unsupported, match=r"open_device\('cuda:3'\) before"):
        devices.open_device("cuda:3")


def test_handles_end_after_the_capture(pretended):
    ended = []
    pretended.capturing = True
    pretended.device.retire(ended.append, 5)
    assert not ended
    pretended.capturing = False
    pretended.device.retire(ended.append, 6)
    assert sorted(ended) == [5, 6]
    pretended.device.forked = True  # handles of the parent process are left alone
    pretended.device.retire(ended.append, 7)
    assert sorted(ended) == [5, 6]
