"""Two real replicas on this machine behind Ray Serve, sglang-router or NVIDIA Dynamo's frontend, one of which is killed under load; or one
replica of Ray Serve, which gets a second one under load, and loses it without.

    python deploy/check.py ray    --program target/release/unicorn-run --model MODEL
    python deploy/check.py router --program target/release/unicorn-run --model MODEL
    python deploy/check.py scale  --program target/release/unicorn-run --model MODEL
    python deploy/check.py dynamo --program target/release/unicorn-run --model MODEL --checkpoint FOLDER --worker UNICORN_DYNAMO

Every request is greedy, so that its text is known from a server alone before. Exits with 1 if a request is lost, if a text differs, if
more is retried than was in flight on the killed replica, or if a replica is not added or not removed.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

SYSTEM = "You tell short stories to children. Every story has one animal, one place and one small surprise at its end. "
QUESTIONS = ["Who lives on the island?", "What does the dog find?", "Why is the goat sad?", "Where does the boat go?"]
PATIENCE_S = 600


def post(address, path, fields):
    request = urllib.request.Request(address + path, json.dumps(fields).encode(), {"Content-Type": "application/json"})
    return urllib.request.urlopen(request, timeout=PATIENCE_S)


def get(address, path):
    with urllib.request.urlopen(address + path, timeout=10) as response:
        return response.read().decode()


def request_of(question, tokens, is_stream):
    # The shared beginning of a question's requests is long enough to be worth a replica's cache.
    messages = [{"role": "user", "content": SYSTEM + question}]
    return {"messages": messages, "max_tokens": tokens, "temperature": 0, "stream": is_stream}


def chat(address, fields):
    """The text of an answer. A stream without its end is an error."""
    with post(address, "/v1/chat/completions", fields) as response:
        if not fields["stream"]:
            return json.load(response)["choices"][0]["message"]["content"]
        text, is_whole = "", False
        for line in response:
            if line.strip() == b"data: [DONE]":
                is_whole = True
            elif line.startswith(b"data: "):
                chunk = json.loads(line[6:])
                if "error" in chunk:
                    raise ConnectionError(chunk["error"]["message"])
                for choice in chunk["choices"]:
                    text += choice.get("delta", {}).get("content") or ""
    if not is_whole:
        raise ConnectionError("the stream ended early")
    return text


class Server:
    """`unicorn-run serve` of its own."""

    def __init__(self, options):
        command = [options.program, "serve", options.model, "--port", "0", "--metrics", "--parallel", str(options.parallel), *options.arguments]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.pid = self.process.pid
        for line in self.process.stderr:
            if found := re.search(r" at (http://\S+)/v1: ", line):
                self.address = found[1]
                break
        else:
            sys.exit(f"{' '.join(command)} ended with {self.process.wait()}")
        threading.Thread(target=lambda: list(self.process.stderr), daemon=True).start()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


def running(address):
    """Requests that a replica generates or has in its queue."""
    names = r"vllm:num_requests_running|vllm:num_requests_waiting|dynamo_component_inflight_requests\{[^}]*\}"
    figures = re.findall(rf"^(?:{names}) (\d+)", get(address, "/metrics"), re.M)
    return sum(int(one) for one in figures)


def wait_for(address, path):
    begun = time.monotonic()
    while True:
        try:
            return get(address, path)
        except OSError:
            if time.monotonic() - begun > PATIENCE_S:
                sys.exit(f"{address}{path} does not answer")
            time.sleep(0.5)


class Ray:
    """Replicas of the Ray Serve application, two unless it scales them."""

    def __init__(self, options, least=2, **scaling):
        # A busy machine takes longer than Ray expects; its controller inherits these.
        for name in ["PROXY_READY_CHECK", "PROXY_HEALTH_CHECK"]:
            os.environ.setdefault(f"RAY_SERVE_{name}_TIMEOUT_S", "120")
        import ray
        from ray import serve

        folder = str(Path(__file__).parent / "ray")
        sys.path.insert(0, folder)
        from unicorn_ray import app

        ray.init(num_cpus=4, include_dashboard=False, logging_level="ERROR", log_to_driver=options.verbose,
                 runtime_env={"env_vars": {"PYTHONPATH": folder}})
        serve.start(http_options={"host": "127.0.0.1", "port": options.port})
        arguments = {"model": options.model, "program": options.program, "parallel": options.parallel, "min_replicas": least, "max_replicas": 2}
        serve.run(app({**arguments, "arguments": " ".join(options.arguments), **scaling}))
        self.address = f"http://127.0.0.1:{options.port}"
        # Its own children's children: the processes that the replicas started.
        self.replicas = self.find(options.program)

    def counted(self):
        return json.loads(get(self.address, "/deployment"))

    @staticmethod
    def find(program):
        found = []
        for status in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = status.read_bytes().decode().split("\0")
            except OSError:
                continue
            if words[:2] == [program, "serve"] and any("--no-webui" in word for word in words):
                pid = int(status.parent.name)
                # Those that listen: the address is not in the command line, since the port is any free one.
                if address := listening(pid):
                    found.append((pid, address))
        return found

    def after(self):
        counted = self.counted()
        print(f"front counted: {counted}")
        return counted["retried"]

    def stop(self):
        import ray
        from ray import serve

        serve.shutdown()
        ray.shutdown()


def listening(pid):
    """The address at which a process of this machine listens."""
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if found := re.match(r"socket:\[(\d+)\]", os.readlink(descriptor)):
                inodes.add(found[1])
        except OSError:
            continue
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == "0A" and words[9] in inodes:
            return f"http://127.0.0.1:{int(words[1].split(':')[1], 16)}"
    return None


class Router:
    """sglang-router in its plain OpenAI mode, before two servers."""

    def __init__(self, options):
        self.servers = [Server(options), Server(options)]
        self.replicas = [(server.pid, server.address) for server in self.servers]
        urls = [server.address for server in self.servers]
        command = [sys.executable, "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", str(options.port),
                   "--backend", "openai", "--worker-urls", *urls, "--prometheus-port", str(options.port + 1), *options.router_arguments]
        print(" ".join(command))
        self.process = subprocess.Popen(command, stdout=None if options.verbose else subprocess.DEVNULL, stderr=subprocess.STDOUT)
        self.address = f"http://127.0.0.1:{options.port}"
        wait_for(self.address, "/health")

    def after(self):
        return None

    def stop(self):
        self.process.terminate()
        self.process.wait()
        for server in self.servers:
            server.stop()


class Dynamo:
    """Two workers of NVIDIA Dynamo behind its frontend. They find each other by files of a folder, without etcd and NATS."""

    MODEL = "checked"

    def __init__(self, options):
        if not options.worker or not options.checkpoint:
            sys.exit("dynamo: expected --worker, the program of deploy/dynamo, and --checkpoint, the folder that MODEL was compiled from")
        self.folder = tempfile.TemporaryDirectory()
        self.environment = {**os.environ, "DYN_DISCOVERY_BACKEND": "file", "DYN_FILE_KV": self.folder.name, "DYN_REQUEST_PLANE": "tcp",
                            "DYN_EVENT_PLANE": "zmq"}
        self.output = None if options.verbose else subprocess.DEVNULL
        self.address = f"http://127.0.0.1:{options.port}"
        # A request of a worker that is gone is sent to another one, with the tokens that it has, three times at most.
        front = [sys.executable, "-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", str(options.port), "--migration-limit", "3"]
        worker = [options.worker, options.model, "--model-path", options.checkpoint, "--served-model-name", self.MODEL,
                  "--parallel", str(options.parallel), *options.arguments]
        self.processes = [self.start(front)]
        self.replicas = []
        for port in (options.port + 1, options.port + 2):
            self.processes.append(self.start(worker, DYN_SYSTEM_PORT=str(port)))
            self.replicas.append((self.processes[-1].pid, f"http://127.0.0.1:{port}"))
        for _, address in self.replicas:
            wait_for(address, "/health")
        begun = time.monotonic()
        while self.MODEL not in wait_for(self.address, "/v1/models"):
            if time.monotonic() - begun > PATIENCE_S:
                sys.exit(f"{self.address} does not list the model")
            time.sleep(0.5)

    def start(self, command, **variables):
        print(" ".join(command))
        return subprocess.Popen(command, stdout=self.output, stderr=self.output, env={**self.environment, **variables})

    def after(self):
        return None

    def stop(self):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait()
        self.folder.cleanup()


def known_texts(options):
    """The text of each question, of a server alone."""
    alone = Server(options)
    known = {question: chat(alone.address, request_of(question, options.tokens, False)) for question in QUESTIONS}
    alone.stop()
    return known


class Load:
    """Requests whose texts are known. Each is sent again as clients of OpenAI's API do: twice at most."""

    def __init__(self, address, known, tokens, model=None):
        self.address, self.known, self.tokens = address, known, tokens
        # Where the front has several, each request names its model.
        self.named = {"model": model} if model else {}
        self.done, self.lost, self.different, self.sent_again = Counter(), [], [], Counter()

    def one(self, number):
        question = QUESTIONS[number % len(QUESTIONS)]
        fields = {**request_of(question, self.tokens, number % 2 == 0), **self.named}
        for _ in range(3):
            try:
                text = chat(self.address, fields)
                break
            except (OSError, ValueError) as error:
                self.sent_again[type(error).__name__ + " " + str(error)[:60]] += 1
                time.sleep(0.5)
        else:
            self.lost.append(number)
            return
        self.done["stream" if fields["stream"] else "whole"] += 1
        if text.strip() != self.known[question].strip():
            self.different.append((number, text, self.known[question]))

    def report(self, requests, seconds):
        print(f"{sum(self.done.values())} of {requests} requests answered in {seconds:.1f} s: {dict(self.done)}")
        print(f"lost: {len(self.lost)}, other than the known text: {len(self.different)}, sent again by their clients: {dict(self.sent_again)}")
        for number, text, expected in self.different[:3]:
            print(f"request {number}:\n  {text!r}\n  {expected!r}")

    def is_good(self):
        return not self.lost and not self.different


def run(options):
    known = known_texts(options)
    front = {"ray": Ray, "router": Router, "dynamo": Dynamo}[options.front](options)
    print(f"replicas: {front.replicas}")
    load = Load(front.address, known, options.tokens, getattr(front, "MODEL", None))

    def kill():
        while sum(load.done.values()) < options.requests // 3:
            time.sleep(0.02)
        # The busier one, in the middle of its answers.
        while True:
            in_flight, pid, address = max((running(address), pid, address) for pid, address in front.replicas)
            if in_flight > 0:
                break
        os.kill(pid, signal.SIGKILL)
        print(f"killed {pid} at {address} with {in_flight} requests in flight")

    begun = time.monotonic()
    killer = threading.Thread(target=kill)
    killer.start()
    with ThreadPoolExecutor(options.clients) as clients:
        list(clients.map(load.one, range(options.requests)))
    killer.join()
    seconds = time.monotonic() - begun
    retried = front.after()
    load.report(options.requests, seconds)
    front.stop()
    again = sum(load.sent_again.values()) + (retried or 0)
    # Between the look at the metrics and the kill, a request may have come; one that comes to a replica which is gone is sent on.
    is_good = load.is_good() and 1 <= again <= options.clients and (retried is None or not load.sent_again)
    if options.front == "dynamo":
        # Its frontend sends them again, and does not say how many.
        is_good = load.is_good() and not load.sent_again
    print("passed" if is_good else "failed")
    return 0 if is_good else 1


def scale(options):
    """One replica, two under load, and one again. One client goes on while the second replica is removed."""
    known = known_texts(options)
    # Ray's own delays are 30 s and 10 minutes; its measurements are means of 30 s in any case.
    front = Ray(options, least=1, upscale_delay_s=5, downscale_delay_s=20)
    load, begun, numbers = Load(front.address, known, options.tokens), time.monotonic(), count()
    print(f"one replica: {front.replicas}")

    def say(what):
        print(f"{time.monotonic() - begun:6.1f} s  {what}", flush=True)

    def wait(is_there, what):
        """Whether it came to that before patience ended."""
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            if found := is_there():
                return found
            time.sleep(0.5)
        say(f"not within {PATIENCE_S} s: {what}")
        return None

    def of_several():
        """What the front counted, once two replicas have answered several requests each."""
        counted = front.counted()
        answered = sorted(counted["by_replica"].values())
        return counted if len(answered) == 2 and answered[0] >= options.clients else None

    def ask(stopped):
        while not stopped.is_set():
            load.one(next(numbers))

    def under_load(clients, is_there, what):
        stopped = threading.Event()
        threads = [threading.Thread(target=ask, args=[stopped]) for _ in range(clients)]
        for thread in threads:
            thread.start()
        found = wait(is_there, what)
        stopped.set()
        for thread in threads:
            thread.join()
        return found

    say(f"{options.clients} clients, each with a request at a time; a replica is for {options.parallel}")
    is_added = under_load(options.clients, of_several, "a second replica that answers requests")
    replicas = front.find(options.program)
    say(f"replicas: {replicas}, answered: {is_added and is_added['by_replica']}")
    say("one client")
    is_removed = under_load(1, lambda: len(front.find(options.program)) == 1, "a replica that is removed")
    left = front.find(options.program)
    say(f"replicas: {left}")
    for _ in QUESTIONS:
        load.one(next(numbers))
    seconds = time.monotonic() - begun
    front.after()
    load.report(next(numbers), seconds)
    front.stop()
    is_good = bool(is_added and is_removed) and len(replicas) == 2 and load.is_good() and not load.sent_again
    print("passed" if is_good else "failed")
    return 0 if is_good else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("front", choices=["ray", "router", "scale", "dynamo"])
    parser.add_argument("--program", default="unicorn-run")
    parser.add_argument("--model", required=True)
    parser.add_argument("--requests", type=int, default=48)
    parser.add_argument("--clients", type=int, help="6 by default; to scale, three for each that a replica is for")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--parallel", type=int, default=4)
    parser.add_argument("--port", type=int, default=8030)
    parser.add_argument("--arguments", type=str.split, default=["--ctx", "512"], help="further ones of unicorn-run serve")
    parser.add_argument("--router-arguments", type=str.split, default=[], help="further ones of sglang-router")
    parser.add_argument("--worker", help="of Dynamo: the program of deploy/dynamo")
    parser.add_argument("--checkpoint", help="of Dynamo: the folder that the model was compiled from")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    options.model = os.path.abspath(options.model)
    options.clients = options.clients or (3 * options.parallel if options.front == "scale" else 6)
    sys.exit(scale(options) if options.front == "scale" else run(options))


if __name__ == "__main__":
    main()
