"""The small files a broker keeps beside the log: `config/*.json`, checkpoint, timer."""
