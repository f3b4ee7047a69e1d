"""Ray Serve application: replicas of `unicorn-run serve` behind one address.

    serve run unicorn_ray:app model=model.unicorn min_replicas=2 max_replicas=4

    client ──► Front ── choose_replicas of PrefixRouter ──► Replica ── HTTP ──► its own unicorn-run serve
                 └─ again, when the replica is gone: whole, or from the last token on

Front handles HTTP and replicas that are gone; PrefixRouter chooses by prefix and load; Replica runs its process. `resume.py` records what a
stream has sent.
"""

import asyncio
import os
import re
import signal
import subprocess
import threading
import time
from collections import OrderedDict

import aiohttp
import ray
from ray import serve
from ray.exceptions import RayActorError, RayError
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.request_router import RequestRouter
from starlette.responses import JSONResponse, Response, StreamingResponse

from resume import Resumption, prefix_blocks

# How long requests wait for another replica, after theirs is gone.
PATIENCE_S = 120
# Between two looks for another replica.
PAUSE_S = 0.25
# Headers that describe one connection, not the answer.
OF_CONNECTION = {"connection", "content-length", "date", "keep-alive", "transfer-encoding"}


class ReplicaGone(Exception):
    """The process of a replica has ended, or ends, before its answer did."""


@serve.deployment
class Replica:
    """One `unicorn-run serve` and the requests to it."""

    def __init__(self, program, model, arguments):
        self.replica_id = serve.get_replica_context().replica_id.unique_id
        command = [program, "serve", model, "--host", "127.0.0.1", "--port", "0", "--metrics", "--no-webui", *arguments]
        gpus = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
        if gpus:
            command += ["--device", gpus[0]]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.address = None
        for line in self.process.stderr:
            print(line, end="")
            if found := re.search(r" at (http://\S+)/v1: ", line):
                self.address = found[1]
                break
        if self.address is None:
            raise RuntimeError(f"{' '.join(command)} ended with {self.process.wait()}")
        # Its messages are read for as long as it runs, so that it never waits for a reader.
        threading.Thread(target=lambda: [print(line, end="") for line in self.process.stderr], daemon=True).start()
        self.session = None

    def _client(self):
        # Made on the event loop. No time limit: an answer may be long.
        if self.session is None:
            self.session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None))
        return self.session

    def check_health(self):
        """Ray replaces the replica when this raises."""
        if self.process.poll() is not None:
            raise ReplicaGone(f"unicorn-run ended with {self.process.returncode}")

    async def record_routing_stats(self):
        """What PrefixRouter reads of this replica: running and waiting requests, of /metrics."""
        try:
            async with self._client().get(f"{self.address}/metrics") as response:
                figures = dict(line.rsplit(" ", 1) for line in (await response.text()).splitlines() if line[:1] != "#")
        except aiohttp.ClientError:
            return {"alive": False}
        names = {"running": "vllm:num_requests_running", "waiting": "vllm:num_requests_waiting", "kv": "vllm:kv_cache_usage_perc"}
        found = {name: float(figures.get(metric, 0)) for name, metric in names.items()}
        return {"alive": True, "at": time.time(), **found}

    def about(self):
        """The replica and its process."""
        return {"replica": self.replica_id, "address": self.address, "pid": self.process.pid}

    async def request(self, request):
        """Yields status and headers, then the bytes of the answer."""
        options = {"data": request["body"] or None, "headers": request["headers"]}
        try:
            async with self._client().request(request["method"], self.address + request["path"], **options) as response:
                headers = {name: value for name, value in response.headers.items() if name.lower() not in OF_CONNECTION}
                yield {"status": response.status, "headers": headers, "replica": self.replica_id}
                async for piece in response.content.iter_any():
                    yield piece
        except (aiohttp.ClientError, ConnectionError) as error:
            raise ReplicaGone(f"{self.replica_id}: {error!r}") from error

    def __del__(self):
        process = getattr(self, "process", None)
        if process and process.poll() is None:
            # It ends its answers first.
            process.send_signal(signal.SIGTERM)


class PrefixRouter(RequestRouter):
    """Sends a request to the replica whose cache has the most of its beginning, unless that one is busier by more than `tolerance`
    requests than the least busy one; then to the least busy one."""

    def initialize_state(self, max_blocks=8192, tolerance=4):
        self.max_blocks, self.tolerance = max_blocks, tolerance
        # Blocks that were sent to each replica, the newest last.
        self.sent = {}
        # Requests that were sent to each replica and have not ended.
        self.open = {}

    def _load(self, replica):
        stats = replica.routing_stats or {}
        measured = stats.get("running", 0) + 2 * stats.get("waiting", 0)
        # What was sent since it was measured is known here alone.
        return max(measured, self.open.get(replica.replica_id.unique_id, 0))

    def _matched(self, replica, blocks):
        sent = self.sent.get(replica.replica_id.unique_id, ())
        matched = 0
        while matched < len(blocks) and blocks[matched] in sent:
            matched += 1
        return matched

    async def choose_replicas(self, candidate_replicas, pending_request=None):
        request = pending_request.args[0] if pending_request and pending_request.args else {}
        avoid, blocks = request.get("avoid", ()), request.get("blocks", ())
        usable = [one for one in candidate_replicas
                  if one.replica_id.unique_id not in avoid and (one.routing_stats or {}).get("alive", True)]
        if not usable:
            return [candidate_replicas]
        by_load = sorted(usable, key=self._load)
        best = max(by_load, key=lambda one: self._matched(one, blocks))
        if self._matched(best, blocks) and self._load(best) - self._load(by_load[0]) <= self.tolerance:
            return [[best], by_load]
        return [[by_load[0]], by_load]

    def on_request_routed(self, pending_request, replica_id, result):
        name = replica_id.unique_id
        self.open[name] = self.open.get(name, 0) + 1
        request = pending_request.args[0] if pending_request.args else {}
        sent = self.sent.setdefault(name, OrderedDict())
        for block in request.get("blocks", ()):
            sent[block] = None
            sent.move_to_end(block)
        while len(sent) > self.max_blocks:
            sent.popitem(last=False)

    def on_request_completed(self, replica_id, internal_request_id):
        name = replica_id.unique_id
        # One that was removed ends its answers after it was forgotten.
        if name in self.open:
            self.open[name] = max(self.open[name] - 1, 0)

    def on_replica_actor_died(self, replica_id):
        super().on_replica_actor_died(replica_id)
        self._forget(replica_id.unique_id)

    def update_replicas(self, replicas):
        super().update_replicas(replicas)
        # Those that autoscaling has removed: they end their answers, and get no more requests.
        for name in self.sent.keys() - {one.replica_id.unique_id for one in replicas}:
            self._forget(name)

    def _forget(self, name):
        self.sent.pop(name, None)
        self.open.pop(name, None)


@serve.deployment
class Front:
    """HTTP. Sends each request to a replica, and again to another one when that is gone."""

    def __init__(self, replicas):
        self.replicas = replicas.options(stream=True)
        self.requests, self.retried, self.resumed, self.lost, self.by_replica = 0, 0, 0, 0, {}

    async def __call__(self, request):
        if request.url.path == "/deployment":
            counted = {"requests": self.requests, "retried": self.retried, "resumed": self.resumed, "lost": self.lost}
            return JSONResponse({**counted, "by_replica": self.by_replica})
        body = await request.body()
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        names = ("content-type", "authorization", "x-api-key", "accept")
        headers = {name: request.headers[name] for name in names if name in request.headers}
        self.requests += 1
        sent = {"method": request.method, "path": path, "headers": headers, "body": body, "blocks": prefix_blocks(body)}
        pieces = self._pieces(sent, Resumption(request.url.path, body))
        try:
            head = await anext(pieces)
        except ReplicaGone as error:
            self.lost += 1
            return JSONResponse({"error": {"message": str(error), "type": "unavailable_error", "code": 503}}, 503)
        is_stream = head["headers"].get("Content-Type", "").startswith(("text/event-stream", "application/x-ndjson"))
        if is_stream:
            return StreamingResponse(pieces, head["status"], head["headers"])
        return Response(b"".join([piece async for piece in pieces]), head["status"], head["headers"])

    async def _pieces(self, request, resumption):
        """Status and headers once, then the answer's bytes, of as many replicas as it takes."""
        avoid, until, has_head = [], None, False
        upstream = {**request, "body": resumption.first_body()}
        while True:
            replica = None
            try:
                async for piece in self.replicas.request.remote({**upstream, "avoid": avoid}):
                    if isinstance(piece, dict):
                        replica = piece["replica"]
                        self.by_replica[replica] = self.by_replica.get(replica, 0) + 1
                        resumption.begin(piece)
                        if not has_head and resumption.is_stream:
                            has_head = True
                            yield piece
                        head = piece
                        continue
                    for out in resumption.feed(piece):
                        yield out
                if resumption.is_cut():
                    raise ReplicaGone(f"{replica}: the stream ended early")
                if not resumption.is_stream:
                    # Whole, so that a client never has a part of an answer that cannot be gone on with.
                    yield head
                    yield resumption.whole
                return
            except (ReplicaGone, RayActorError, RayError) as error:
                if isinstance(error, RayError) and not isinstance(error, (RayActorError, ReplicaGone)):
                    raise
                if replica:
                    avoid.append(replica)
                until = until or time.monotonic() + PATIENCE_S
                if time.monotonic() > until or not resumption.can_resume():
                    self.lost += 1
                    if has_head:
                        yield resumption.failure("the replica is gone, and this stream cannot be gone on with")
                        return
                    raise ReplicaGone(f"no replica is left: {error}") from None
                if replica:
                    self.retried += 1
            if resumption.is_full():
                for out in resumption.last_events():
                    yield out
                return
            await asyncio.sleep(PAUSE_S)
            if resumption.has_sent():
                upstream = await self._resumed(request, resumption, avoid)
                self.resumed += 1

    async def _resumed(self, request, resumption, avoid):
        """The request for the rest of a stream: the same tokens as a prompt."""
        async def ask(path, body):
            whole = b""
            call = {**request, "method": "POST", "path": path, "body": body, "avoid": avoid}
            async for piece in self.replicas.request.remote(call):
                whole += b"" if isinstance(piece, dict) else piece
            return whole
        for _ in range(int(PATIENCE_S / PAUSE_S)):
            try:
                return {**request, "path": "/v1/completions", "body": await resumption.rest_body(ask)}
            except (ReplicaGone, RayActorError):
                await asyncio.sleep(PAUSE_S)
        raise ReplicaGone("no replica is left")


def app(arguments):
    """For `serve run`: model, and optionally program, arguments (of unicorn-run serve), parallel, min_replicas, max_replicas, gpus,
    upscale_delay_s, downscale_delay_s."""
    parallel = int(arguments.get("parallel", 4))
    least = int(arguments.get("min_replicas", 1))
    # The delays are Ray's own where none are given.
    delays = {name: float(arguments[name]) for name in ("upscale_delay_s", "downscale_delay_s") if name in arguments}
    scaling = AutoscalingConfig(
        min_replicas=least, initial_replicas=least, max_replicas=max(least, int(arguments.get("max_replicas", least))),
        target_ongoing_requests=parallel, **delays,
    )
    routing = RequestRouterConfig(request_router_class=PrefixRouter, request_routing_stats_period_s=0.5)
    replicas = Replica.options(
        autoscaling_config=scaling, request_router_config=routing, max_ongoing_requests=4 * parallel,
        health_check_period_s=1, health_check_timeout_s=10, graceful_shutdown_timeout_s=60,
        ray_actor_options={"num_cpus": float(arguments.get("cpus", 1)), "num_gpus": float(arguments.get("gpus", 0))},
    ).bind(
        arguments.get("program", "unicorn-run"), os.path.abspath(arguments["model"]),
        ["--parallel", str(parallel), *arguments.get("arguments", "").split()],
    )
    return Front.options(max_ongoing_requests=1000, ray_actor_options={"num_cpus": 0.5}).bind(replicas)
