// A call that joins Gradio's queue while the page's stream of results ends gets its results, too.
//
// Gradio's server ends the stream when no call is left. A page that has not yet read that end takes the stream for open:
// it opens no new one, and a call that joins meanwhile shows nothing. The server tells such a call (`LateJoins` in
// app/web/guard.py); the call's answer then waits until Gradio has closed the stream.
"use strict";

(() => {
  const JOIN = "/gradio_api/queue/join";
  const RESULTS = "/gradio_api/queue/data";
  const MOST_MS = 5000; // a stream that breaks is never closed
  const plain = window.fetch;
  let stream = ""; // the name of the last one
  let closed = Promise.resolve(); // when Gradio has closed it

  const late = () => new Promise((done) => setTimeout(done, MOST_MS));

  window.fetch = async (input, init) => {
    const { pathname } = new URL(input.url ?? input, location.href);
    if (pathname !== JOIN && pathname !== RESULTS) return plain(input, init);
    const request = new Request(input, init);
    if (pathname === RESULTS) {
      stream = crypto.getRandomValues(new Uint32Array(4)).join("-");
      closed = new Promise((done) => request.signal.addEventListener("abort", done, { once: true })); // Gradio closes by aborting
    }
    if (stream) request.headers.set("X-Stream", stream);
    const end = closed;
    const answer = await plain(request);
    if (answer.headers.has("X-Stream-Ended")) await Promise.race([end, late()]);
    return answer;
  };
})();
