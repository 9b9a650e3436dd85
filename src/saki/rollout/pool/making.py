"""A pool whose replicas are Ray actors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from saki.rollout.external_process import ServedModel
from saki.rollout.pool.pool import EnginePool
from saki.rollout.pool.ray_host import RayHost
from saki.rollout.pool.ray_runtime import RayRuntime
from saki.rollout.pool.replica import ReplicaModels
from saki.rollout.pool.settings import PoolSettings


def ray_pool(
    student: ServedModel,
    teacher: ServedModel | None,
    stop_token_ids: Sequence[int],
    settings: PoolSettings | None = None,
    *,
    student_version: int = 0,
    **options: Any,
) -> EnginePool:
    """Start replicas as Ray actors.

    Ray is started on this machine alone unless it is up already or ``settings.address`` names a cluster.

    Args:
        student: The draft model: a folder that every machine can read, or a hub name. Device ``auto`` is a GPU where
            the replica has one.
        teacher: The fixed teacher; None for student-only rollouts without scores.
        stop_token_ids: Ids that end a completion.
        settings: Replicas, units, deadlines; one replica on a CPU by default.
        student_version: Version of the student's weights as loaded.
        **options: Further options of :class:`saki.rollout.ResidentEngine`.

    Raises:
        ValueError: If ray is not installed or a replica cannot load its models.
        PoolError: If ray does not start, or replicas fail.

    Example:
        >>> student, teacher = ServedModel("student", 49152), ServedModel("teacher", 49152)
        >>> pool = ray_pool(student, teacher, [2], PoolSettings(replicas=2))  # doctest: +SKIP
    """
    settings = settings or PoolSettings()
    models = ReplicaModels(
        student=student,
        teacher=teacher,
        stop_token_ids=tuple(stop_token_ids),
        batch_rows=settings.batch_rows or settings.unit_rows,
        threads=settings.threads,
        options=options,
        student_version=student_version,
    )
    return EnginePool(RayHost(models, settings, RayRuntime(settings)), settings)
