"""Where models run. What is asked here stays here: onnxruntime's wheels send usage data to their
makers unless this is set before their first import. Whoever wants that sets it to 0."""

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
