# A model with its detector behind OpenAI's protocol (docs/serving.md):
#   docker build -t anchorscope .
#   docker run -p 8000:8000 -v $PWD/detector:/detector:ro -v $PWD/cache:/cache \
#     -e ANCHORSCOPE_API_KEY -e HF_HOME=/cache/hub anchorscope /detector --model bundled
FROM python:3.12-slim
WORKDIR /app
COPY pyproject.toml README.md LICENSE NOTICE constraints.txt ./
COPY src src
RUN pip install --no-cache-dir --constraint constraints.txt ".[serve]" \
    && useradd --create-home anchorscope && mkdir /cache && chown anchorscope /cache
USER anchorscope
ENV ANCHORSCOPE_CACHE=/cache
EXPOSE 8000
# Ready once the model is loaded and has answered; not any more once it is told to stop.
HEALTHCHECK --start-period=5m CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/readyz')"]
# As process 1 it gets SIGTERM itself, and answers what is under way before it ends.
ENTRYPOINT ["anchorscope", "detect", "serve", "--listen", "0.0.0.0", "--port", "8000"]
