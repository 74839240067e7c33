import threading

from specscope.engine.trace.events import Footer, Header, Span
from specscope.traces.live import LiveLog
from tests.traces.samples import sample_events


def span(number):
    return Span(number, "gpu0", "draft", 0, 1, "drafter", 1, 0, 1, 0, "done")


def test_a_reader_gets_every_event_once_in_order():
    log, events = LiveLog(), sample_events()
    assert log.since(0) == ([], 0)
    seen, cursor = [], 0
    for i, event in enumerate(events):
        log.append(event)
        if i % 7 == 0:
            fresh, cursor = log.since(cursor)
            seen += fresh
    fresh, cursor = log.since(cursor)
    assert seen + fresh == events
    assert log.since(cursor) == ([], cursor)


def test_the_footer_closes_the_log():
    log, events = LiveLog(), sample_events()
    for event in events[:-1]:
        log.append(event)
    assert not log.closed
    log.append(events[-1])
    assert log.closed
    log.append(span(1))
    assert log.since(0)[0] == events


def test_a_run_without_a_footer_is_closed_by_hand():
    log = LiveLog()
    log.append(sample_events()[0])
    log.close()
    assert log.closed
    assert isinstance(log.since(0)[0][0], Header)


def test_memory_is_bounded_and_the_header_and_the_newest_stay():
    log = LiveLog(capacity=100)
    header = sample_events()[0]
    log.append(header)
    for i in range(1000):
        log.append(span(i))
    fresh, cursor = log.since(0)
    assert fresh[0] is header
    assert [s.id for s in fresh[1:]] == list(range(log.dropped, 1000))
    assert 100 <= len(fresh) - 1 <= 125
    assert cursor == 1001
    log.append(span(1000))
    assert log.since(cursor) == ([span(1000)], 1002)


def test_a_reader_left_behind_goes_on_with_the_oldest_kept():
    log = LiveLog(capacity=100)
    log.append(sample_events()[0])
    for i in range(10):
        log.append(span(i))
    _, cursor = log.since(0)
    for i in range(10, 500):
        log.append(span(i))
    assert cursor <= log.dropped
    fresh, _ = log.since(cursor)
    assert fresh[0] == span(log.dropped)


def test_one_thread_appends_and_others_read():
    log, total = LiveLog(), 20_000
    log.append(sample_events()[0])
    results = []

    def reading():
        seen, cursor = [], 0
        while True:
            closed = log.closed
            fresh, cursor = log.since(cursor)
            seen += fresh
            if closed:
                results.append([e.id for e in seen if isinstance(e, Span)])
                return

    threads = [threading.Thread(target=reading) for _ in range(3)]
    for thread in threads:
        thread.start()
    for i in range(total):
        log.append(span(i))
    log.append(Footer("done", (), (), 0))
    for thread in threads:
        thread.join()
    assert results == [list(range(total))] * 3
