"""The page of `anchorscope app`: a model asked live, on this machine alone."""

import os

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # before gradio reads it: nothing is reported
