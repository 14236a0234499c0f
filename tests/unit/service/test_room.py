"""Room in a queue is counted seldom while there is much of it, and hardly overdrawn."""

from meshwright.service.jobs.jobs import SHARE, Room


def test_much_room_is_counted_once_for_many_jobs() -> None:
    room, counts = Room(), []

    def count() -> int:
        counts.append(1)
        return 10 * SHARE + 1  # (161 - 1) // 16 = 10 places beside the one that was asked for

    assert all(room.admits("ours", count) for _ in range(11))
    assert len(counts) == 1
    assert room.admits("ours", count)
    assert len(counts) == 2


def test_little_room_is_counted_for_every_job() -> None:
    room, left = Room(), [3, 2, 1, 0, 1]
    assert [room.admits("ours", lambda: left.pop(0)) for _ in range(5)] == [True, True, True, False, True]


def test_one_process_never_overdraws() -> None:
    limit, queued, room = 100, list[int](), Room()
    for turn in range(500):
        if room.admits("ours", lambda: limit - len(queued)):
            queued.append(turn)
    assert len(queued) == limit


def test_a_further_process_overdraws_by_its_share_at_most() -> None:
    limit, queued = 160, list[int]()
    first, second = Room(), Room()

    def fill(room: Room, turns: int) -> None:
        for turn in range(turns):
            if room.admits("ours", lambda: limit - len(queued)):
                queued.append(turn)

    fill(second, 1)  # has counted, and may fill (160 - 1) // 16 = 9 places more
    fill(first, 500)
    assert len(queued) == limit
    fill(second, 500)
    assert len(queued) == limit + 9


def test_one_tenants_room_is_not_anothers() -> None:
    room = Room()
    assert room.admits("ours", lambda: 1000)
    assert not room.admits("theirs", lambda: 0)
