"""A logger: epochs and results of runs as rows of an SQLite database, which all runs share."""

import json
import sqlite3

from clickexp.loggers import Logger


class SqliteLogger(Logger):
    """Writes a row of table `epochs` after each epoch, and one of table `results` at the end."""

    def __init__(self, file: str):
        self.file, self.run = file, ""

    def start(self, info):
        self.run = str(info.folder)
        self.write("CREATE TABLE IF NOT EXISTS epochs (run, epoch, record)")
        self.write("CREATE TABLE IF NOT EXISTS results (run, model, test)")

    def epoch(self, record):
        text = json.dumps(dict(record), default=float)
        self.write("INSERT INTO epochs VALUES (?, ?, ?)", self.run, record["epoch"], text)

    def result(self, result):
        text = json.dumps(dict(result.test))
        self.write("INSERT INTO results VALUES (?, ?, ?)", self.run, result.model, text)

    def write(self, statement, *values):
        with sqlite3.connect(self.file) as database:
            database.execute(statement, values)
