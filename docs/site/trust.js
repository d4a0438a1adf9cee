// The figure of docs/trust.md: trust or weight against distance, for degrees of freedom that the reader chooses.
;(() => {
  const LEFT = 72, RIGHT = 30, TOP = 12, BOTTOM = 56, WIDTH = 680, HEIGHT = 340
  const LEAST = -2, MOST = 4 // powers of ten of the distance

  // The same as adaterm.equations: AdaTerm's trust, and RobustAdamW's weight of a tensor, which does not exceed 1 here.
  // The first of the degrees of freedom are those with which each begins.
  const RULES = {
    adaterm: {
      name: "AdaTerm: trust in a tensor's gradient",
      word: "trust",
      axis: "distance",
      dofs: [1, 10, 100],
      trust: (distance, dof) => dof / (dof + distance),
    },
    robust: {
      name: "RobustAdamW: weight of a tensor",
      word: "weight",
      axis: "distance, in units of the usual one",
      dofs: [3, 30, 300],
      trust: (distance, dof) => Math.min(1, (dof + 1) / (dof + distance)),
    },
  }

  const x = (power) => LEFT + ((power - LEAST) / (MOST - LEAST)) * (WIDTH - LEFT - RIGHT)
  const y = (trust) => TOP + (1 - trust) * (HEIGHT - TOP - BOTTOM)
  const read = (slider) => +(10 ** slider.value).toPrecision(3) // what is shown is what is computed with
  const show = (value) => (value >= 1000 ? value.toLocaleString("en") : String(+value.toPrecision(3)))

  function drawAxes() {
    const parts = []
    for (let trust = 0; trust <= 1; trust += 0.25) {
      parts.push(`<line class="grid" x1="${LEFT}" x2="${WIDTH - RIGHT}" y1="${y(trust)}" y2="${y(trust)}"/>`)
      parts.push(`<text x="${LEFT - 8}" y="${y(trust) + 5}" text-anchor="end">${trust}</text>`)
    }
    for (let power = LEAST; power <= MOST; power++) {
      parts.push(`<line class="grid" x1="${x(power)}" x2="${x(power)}" y1="${TOP}" y2="${y(0)}"/>`)
      parts.push(`<text x="${x(power)}" y="${y(0) + 24}" text-anchor="middle">${show(10 ** power)}</text>`)
    }
    parts.push(`<text class="axis" x="${(LEFT + WIDTH - RIGHT) / 2}" y="${HEIGHT - 6}" text-anchor="middle"></text>`)
    parts.push(`<text class="kind" transform="translate(14 ${y(0.5)}) rotate(-90)" text-anchor="middle"></text>`)
    return parts.join("")
  }

  function drawCurve(rule, dof, kind) {
    const points = []
    for (let place = 0; place <= 240; place++) {
      const power = LEAST + ((MOST - LEAST) * place) / 240
      points.push(`${x(power).toFixed(1)},${y(rule.trust(10 ** power, dof)).toFixed(1)}`)
    }
    return `<polyline class="${kind}" points="${points.join(" ")}"/>`
  }

  function nameCurve(rule, dof) {
    let power = LEAST
    while (rule.trust(10 ** power, dof) > 0.3) power += 0.01
    return `<text class="name" x="${x(power) + 7}" y="${y(0.3)}">dof ${dof}</text>`
  }

  function build(figure) {
    figure.innerHTML = `
      <div class="trust-controls">
        <label>rule <select name="rule">${Object.entries(RULES)
          .map(([key, rule]) => `<option value="${key}">${rule.name}</option>`)
          .join("")}</select></label>
        <label>degrees of freedom <output name="dof"></output>
          <input name="dof" type="range" min="-1" max="3" step="any" value="0" aria-label="degrees of freedom"></label>
        <label>distance <output name="distance"></output>
          <input name="distance" type="range" min="${LEAST}" max="${MOST}" step="any" value="${Math.log10(5)}"
            aria-label="distance"></label>
      </div>
      <svg viewBox="0 0 ${WIDTH} ${HEIGHT}" role="img">
        ${drawAxes()}<g class="curves"></g></svg>
      <p class="trust-answer" aria-live="polite"></p>`
    const [rule, dof, distance] = ["select", "input[name=dof]", "input[name=distance]"].map((it) => figure.querySelector(it))
    const update = () => {
      const chosen = RULES[rule.value], degrees = read(dof), far = read(distance)
      const trust = chosen.trust(far, degrees)
      const others = chosen.dofs.map((other) => drawCurve(chosen, other, "other")).join("")
      const names = chosen.dofs.map((other) => nameCurve(chosen, other)).join("")
      const [at, height] = [x(Math.log10(far)), y(trust)]
      figure.querySelector(".curves").innerHTML = `${others}${drawCurve(chosen, degrees, "chosen")}
        <path class="drop" d="M${at},${y(0)} V${height} H${LEFT}"/>${names}<circle cx="${at}" cy="${height}" r="6"/>`
      figure.querySelector("svg").setAttribute("aria-label", `The ${chosen.word} against distance`)
      figure.querySelector(".kind").textContent = chosen.word
      figure.querySelector(".axis").textContent = chosen.axis
      figure.querySelector("output[name=dof]").textContent = show(degrees)
      figure.querySelector("output[name=distance]").textContent = show(far)
      figure.dataset.trust = trust
      figure.dataset.dof = degrees
      figure.dataset.distance = far
      figure.querySelector(".trust-answer").textContent =
        `A gradient at distance ${show(far)} gets a ${chosen.word} of ${trust.toFixed(3)}.`
    }
    rule.addEventListener("input", () => (dof.value = Math.log10(RULES[rule.value].dofs[0])))
    figure.addEventListener("input", update)
    update()
  }

  const start = () => document.querySelectorAll("#trust-figure").forEach(build)
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start)
  else start()
})()
