// Search from a file: browsers refuse a Worker there, so this one runs in an iframe.
// Messages are cloned, as between threads: the page and the search must not share objects.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const base = new URL(url, document.baseURI);
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.appendChild(this.frame);
      const inner = this.frame.contentWindow;
      inner.postMessage = data => setTimeout(() => this.answer(structuredClone(data)));
      inner.importScripts = (...urls) => {
        const load = src => new Promise((done, failed) => {
          const script = inner.document.createElement("script");
          Object.assign(script, { src: new URL(src, base).href, onload: done, onerror: failed });
          inner.document.body.appendChild(script);
        });
        this.ready = urls.reduce((before, src) => before.then(() => load(src)), this.ready);
        return this.ready;
      };
      this.ready = Promise.resolve();
      inner.importScripts(base);
    }
    answer(data) {
      const event = new MessageEvent("message", { data });
      if (this.onmessage) this.onmessage(event);
      this.dispatchEvent(event);
    }
    postMessage(data) {
      const event = new MessageEvent("message", { data: structuredClone(data) });
      this.ready = this.ready.then(() => setTimeout(() => this.frame.contentWindow.dispatchEvent(event)));
    }
    terminate() {
      this.frame.remove();
    }
  };
}
