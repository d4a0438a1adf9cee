// Browsers allow no workers to pages that are opened from a disk. There, the search's worker runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      this.waiting = []
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.documentElement.append(this.frame)
      this.inner = this.frame.contentWindow
      this.inner.postMessage = (data) => setTimeout(() => this.onmessage?.({ data }))
      const script = this.inner.document.createElement("script")
      script.src = url
      script.onload = () => {
        const messages = this.waiting
        this.waiting = null
        messages.forEach((data) => this.deliver(data))
      }
      script.onerror = (error) => this.onerror?.(error)
      this.inner.document.head.append(script)
    }
    deliver(data) {
      this.inner.dispatchEvent(new this.inner.MessageEvent("message", { data }))
    }
    postMessage(data) {
      if (this.waiting) this.waiting.push(data)
      else setTimeout(() => this.deliver(data))
    }
    terminate() {
      this.frame.remove()
    }
  }
}
