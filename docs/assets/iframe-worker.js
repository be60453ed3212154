// A worker for pages opened as files, where browsers allow none: the search runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const base = new URL(address, document.baseURI).href;
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.title = "search";
      document.documentElement.append(frame);
      const inside = frame.contentWindow;
      inside.postMessage = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        this.onmessage?.(event);
      };
      const load = (source) => new Promise((done, failed) => {
        const script = inside.document.createElement("script");
        script.onload = done;
        script.onerror = failed;
        script.src = new URL(source, base).href;
        inside.document.head.append(script);
      });
      inside.importScripts = (...sources) => sources.reduce((last, source) => last.then(() => load(source)), Promise.resolve());
      this.inside = inside;
      load(base).then(() => {
        this.ready = true;
        this.waiting.forEach((data) => this.postMessage(data));
      });
    }

    postMessage(data) {
      if (!this.ready) return this.waiting.push(data);
      const event = new MessageEvent("message", { data });
      this.inside.dispatchEvent(event);
      this.inside.onmessage?.(event);
    }

    terminate() {}
  };
}
