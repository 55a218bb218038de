"""A server on this machine in the place of Weights & Biases: takes what a client uploads, and keeps it."""

import gzip
import json
import re
from collections import deque
from http.server import BaseHTTPRequestHandler

from local_server import LocalServer

ENTITY = "somebody"


class WandbServer(LocalServer):
    """Answers the queries of uploads and of saving views.

    runs: config, summary and history of each run by its id. views: those saved, by type. files: names of uploads.
    artifacts: names of those that runs log, with their aliases. used: those that they use. alerts: their texts. sweep:
    the configuration of a sweep, whose agent runs `commands`, arguments by name.
    """

    def __init__(self):
        super().__init__(_Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.runs, self.views, self.files, self.unknown = {}, {}, set(), []
        self.artifacts, self.used, self.alerts = {}, [], []
        self.sweep, self.commands = "", deque()

    def environment(self):
        """That of a client of this server."""
        return {"WANDB_BASE_URL": self.url, "WANDB_API_KEY": "0" * 40}

    def answer(self, name, given):
        return getattr(self, name, self.nothing)(given) if name else {}

    def nothing(self, given):
        return {}

    def Viewer(self, given):
        return {"viewer": {"id": "u", "entity": ENTITY, "username": ENTITY, "teams": {"edges": []}}}

    def UpsertView2(self, given):
        return self.upsertView(given)

    def upsertView(self, given):
        self.views[given["type"]] = given | {"spec": json.loads(given["spec"])}
        project = {"id": "p", "name": given["projectName"], "entityName": given["entityName"]}
        kept = {key: given[key] for key in ("name", "displayName", "description", "type", "spec")}
        return {
            "upsertView": {
                "view": {"id": f"view-{len(self.views)}", "project": project, **kept},
                "inserted": True,
            }
        }

    def GetProjects(self, given):
        page = {"__typename": "PageInfo", "endCursor": None, "hasNextPage": False}
        return {"models": {"pageInfo": page, "edges": []}}

    def GetDefaultEntity(self, given):
        return {"viewer": {"id": "u", "entity": ENTITY}}

    def UpsertBucket(self, given):
        run = self.runs.setdefault(
            given["name"], {"config": {}, "summary": {}, "history": [], "ended": None}
        )
        run |= {
            key: given[key] for key in ("project", "groupName", "jobType", "tags") if given.get(key)
        }
        run["config"] |= {
            key: entry["value"]
            for key, entry in json.loads(given.get("config") or "{}").items()
            if key != "_wandb"
        }
        project = {"id": "p", "name": given["project"], "entity": {"id": "e", "name": ENTITY}}
        bucket = {"id": "b", "name": given["name"], "project": project, "historyLineCount": 0}
        return {"upsertBucket": {"bucket": bucket, "inserted": True}}

    def ArtifactType(self, given):
        return {"project": {"artifact": None}}

    def CreateArtifact(self, given):
        artifact = given["input"]
        name = artifact["artifactCollectionName"]
        self.artifacts[name] = [alias["alias"] for alias in artifact["aliases"] or ()]
        sequence = {"latestArtifact": {"id": name}}
        artifact = {"id": name, "state": "COMMITTED", "artifactSequence": sequence}
        return {"createArtifact": {"artifact": artifact}}

    def UseArtifact(self, given):
        name = given["input"]["artifactID"]
        self.used.append(name)
        return {"useArtifact": {"artifact": {"id": name}}}

    def NotifyScriptableRunAlert(self, given):
        self.alerts.append(given["text"])
        return {"notifyScriptableRunAlert": {"success": True}}

    def UpsertSweep(self, given):
        self.sweep = given["config"]
        project = {"id": "p", "name": given["projectName"], "entity": {"id": "e", "name": ENTITY}}
        sweep = {"id": "s", "name": "sweep", "state": "RUNNING", "project": project}
        return {"upsertSweep": {"sweep": sweep, "configValidationWarnings": []}}

    def SweepWithRuns(self, given):
        sweep = {"id": "s", "name": "sweep", "config": self.sweep, "runs": {"edges": []}}
        return {"project": {"sweep": sweep}}

    def CreateAgent(self, given):
        return {"createAgent": {"agent": {"id": "agent"}}}

    def Heartbeat(self, given):
        commands = []
        if self.commands:
            arguments = {name: {"value": value} for name, value in self.commands.popleft().items()}
            commands = [{"type": "run", "run_id": "run", "program": "clickexp", "args": arguments}]
        return {"agentHeartbeat": {"agent": {"id": "agent"}, "commands": json.dumps(commands)}}

    def CreateRunFiles(self, given):
        files = [
            {"name": name, "uploadUrl": f"{self.url}/upload/{name}"} for name in given["files"]
        ]
        return {"createRunFiles": {"runID": given["run"], "uploadHeaders": [], "files": files}}

    def stream(self, run, parts):
        """A part of the history, the summary, or the end of a run."""
        for name, part in parts.get("files", {}).items():
            rows = [json.loads(line) for line in part["content"]]
            if name == "wandb-history.jsonl":
                self.runs[run]["history"] += rows
            elif name == "wandb-summary.json":
                self.runs[run]["summary"] = rows[-1]
        if parts.get("complete"):
            self.runs[run]["ended"] = parts["exitcode"]


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.body()
        if self.path.startswith("/graphql"):
            query = json.loads(body)
            name = re.search(r"(?:query|mutation)\s+(\w+)", query["query"])
            name = name and name[1]
            if name and not hasattr(self.server, name):
                self.server.unknown.append((name, query["query"], query.get("variables")))
            self.reply({"data": self.server.answer(name, query.get("variables") or {})})
            return
        if self.path.endswith("/file_stream"):
            self.server.stream(self.path.split("/")[-2], json.loads(body))
        self.reply({})

    def do_PUT(self):
        self.body()
        self.server.files.add(self.path.removeprefix("/upload/"))
        self.reply({})

    def do_GET(self):
        self.reply({})

    def body(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

    def reply(self, content):
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass
