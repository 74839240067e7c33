"""The rows of KV caches, from the rows that forwards fed and found."""

from dataclasses import replace

from specscope.engine.trace.events import Part, Round, Span
from specscope.traces.view.caches import caches
from specscope.traces.waiting import Around
from tests.traces.samples import sample_trace


def span(number, kind, step, context, rows, model="drafter", outcome="done"):
    device = "gpu0" if model == "drafter" else "gpu1"
    return Span(number, device, kind, 10 * number, 10 * number + 9, model, step, 0, rows, context, outcome)


def traced(spans, parts=()):
    return replace(sample_trace("speculative"), spans=list(spans), parts=list(parts))


def rows_of(trace, number=0):
    view = caches(trace)[number]
    names = list(view["rows"])
    return [
        (step, {name: view["rows"][name][i] for name in names if view["rows"][name][i]})
        for i, step in enumerate(view["step"])
    ]


def test_rows_that_the_next_step_finds_are_kept_and_the_others_rolled_back():
    prefill, *drafts = (
        span(0, "prefill", 0, 0, 10),
        span(1, "draft", 1, 10, 1),
        span(2, "draft", 1, 11, 1),
        span(3, "draft", 1, 12, 1),
        span(4, "draft", 2, 11, 2),
        span(5, "draft", 2, 13, 1),
    )
    assert rows_of(traced([prefill, *drafts])) == [
        (0, {"new": 10}),
        (1, {"valid": 10, "new": 1, "lost": 2}),
        (2, {"valid": 11, "unknown": 3}),
    ]


def test_rows_cached_before_a_step_and_dropped_after_it_are_rolled_back():
    spans = [
        span(0, "prefill", 0, 0, 4),
        span(1, "draft", 1, 4, 4),
        span(2, "draft", 2, 8, 1),
        span(3, "draft", 3, 5, 1),
        span(4, "draft", 3, 3, 1),
        span(5, "draft", 4, 4, 1),
    ]
    assert rows_of(traced(spans))[2:] == [
        (2, {"valid": 5, "lost": 4}),
        (3, {"valid": 3, "new": 1, "lost": 3}),
        (4, {"valid": 4, "unknown": 1}),
    ]


def test_fuzzy_rows_are_marked_and_replaced_by_calibrated_ones():
    spans = [
        span(0, "prefill", 0, 0, 6),
        span(1, "calibrate", 1, 6, 1),
        span(2, "draft", 1, 7, 1),
        span(3, "draft", 1, 8, 1),
        span(4, "calibrate", 2, 7, 3),
        span(5, "draft", 2, 10, 1),
        span(6, "calibrate", 3, 10, 1),
    ]
    parts = [Part(number, "attention", 0, 1, 2) for number in (2, 3, 5)]
    found = rows_of(traced(spans, parts))
    assert found[1:3] == [
        (1, {"valid": 6, "calibrated": 1, "lost-fuzzy": 2}),
        (2, {"valid": 7, "calibrated": 3, "lost-fuzzy": 1}),
    ]
    kept = [*spans[:4], span(4, "draft", 2, 9, 1), span(5, "draft", 3, 10, 1)]
    found = rows_of(traced(kept, [*parts, Part(4, "attention", 0, 1, 2)]))
    assert found[1:3] == [
        (1, {"valid": 6, "calibrated": 1, "fuzzy": 2}),
        (2, {"valid": 7, "fuzzy": 3}),
    ]


def test_rows_of_unknown_origin_are_not_invented():
    moved = [span(0, "prefill", 0, 0, 5), span(1, "draft", 1, 5, 1), span(2, "draft", 2, 9, 1)]
    assert rows_of(traced(moved))[1:] == [(1, {"valid": 5, "new": 1}), (2, {"valid": 6, "unknown": 4})]
    stopped = [*moved[:1], span(1, "draft", 1, 5, 2, outcome="cancelled"), span(2, "draft", 2, 6, 1)]
    assert rows_of(traced(stopped))[1] == (1, {"valid": 5, "lost": 1, "unknown": 1})


def test_rows_that_another_device_sent_are_known_and_sent_ones_change_nothing():
    spans = [
        span(0, "prefill", 0, 0, 6, "target"),
        span(1, "communicate", 0, 0, 6, "target"),
        span(2, "communicate", 0, 0, 4),
        span(3, "communicate", 0, 4, 2),
        span(4, "draft", 1, 6, 1),
        span(5, "verify", 1, 6, 2, "target"),
        span(6, "communicate", 1, 6, 2, "target"),
        span(7, "draft", 2, 7, 1),
    ]
    assert rows_of(traced(spans), 0) == [(0, {"new": 6}), (1, {"valid": 6, "unknown": 2})]
    assert rows_of(traced(spans), 1) == [
        (0, {"new": 6}),
        (1, {"valid": 6, "new": 1}),
        (2, {"valid": 7, "unknown": 1}),
    ]


def test_a_part_with_one_step_or_one_forward_of_a_batch_has_no_caches():
    part = Around(since=5, until=90)
    for spans in ([span(1, "draft", 1, 5, 1)], [span(1, "communicate", 1, 0, 0)]):
        assert caches(traced(spans), part) == []
    trace = sample_trace("speculative")
    header = replace(trace.header, prompts=("a", "b"), prompt_ids=((1,), (2,)))
    spans = [replace(span(1, "verify", 1, 8, 8, "target"), sequence=-1)]
    rounds = [Round(1, i, "verify", 3, 3, 4, 20, 1) for i in range(2)]
    batch = replace(trace, header=header, spans=spans, rounds=rounds)
    assert len(caches(batch)) == 2
    assert caches(batch, Around(until=90)) == []


def test_numbers_below_zero_in_a_file_count_as_none():
    spans = [span(0, "prefill", 0, 0, 5), span(1, "draft", 1, -3, -2), span(2, "draft", 2, 4, 1)]
    assert rows_of(traced(spans)) == [(0, {"lost": 5}), (1, {}), (2, {"unknown": 5})]


def test_a_model_whose_forwards_find_no_rows_has_no_cache():
    heads = [span(i, "draft", i, 0, 1) for i in range(1, 4)]
    target = [span(9, "prefill", 0, 0, 5, "target"), span(10, "verify", 1, 5, 3, "target")]
    assert [view["model"] for view in caches(traced([*heads, *target]))] == ["target"]


def test_the_sequences_of_a_padded_batch_have_padding():
    trace = sample_trace("speculative")
    header = replace(trace.header, prompts=("a", "b"), prompt_ids=((1, 2, 3), (1, 2, 3, 4, 5)))
    spans = [
        replace(span(1, "verify", 1, 8, 8, "target"), sequence=-1),
        replace(span(2, "verify", 2, 14, 2, "target"), sequence=-1),
    ]
    rounds = [
        Round(1, 0, "verify", 3, 3, 4, 20, 1),
        Round(1, 1, "verify", 1, 0, 1, 20, 1),
        Round(2, 0, "plain", 0, 0, 1, 30, 2),
        Round(2, 1, "plain", 0, 0, 1, 30, 2),
    ]
    batch = replace(trace, header=header, spans=spans, rounds=rounds)
    assert rows_of(batch, 0) == [
        (1, {"valid": 2, "new": 4, "padded": 2}),
        (2, {"valid": 6, "unknown": 1, "padded": 1}),
    ]
    assert rows_of(batch, 1) == [
        (1, {"valid": 4, "new": 1, "lost": 1, "padded": 2}),
        (2, {"valid": 5, "unknown": 1, "padded": 2}),
    ]
